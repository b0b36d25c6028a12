// The one place that knows where the view library stands.
export {
  html, render, useEffect, useLayoutEffect, useMemo, useRef, useState, useCallback,
} from "./vendor/htm_preact_standalone.js";
