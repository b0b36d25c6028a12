// Every text that is too faint for what is behind it, and every point of the map.
// Reference: WCAG 2.2, 1.4.3 and 1.4.11.
() => {
  const channel = (v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const parsed = (colour) => {
    const [r, g, b, a = 1] = colour.match(/[\d.]+/g).map(Number);
    return [r, g, b, a];
  };
  const over = ([r, g, b, a], under) => [r, g, b].map((v, i) => v * a + under[i] * (1 - a));
  const shares = [0.2126, 0.7152, 0.0722];
  const light = (rgb) => rgb.map(channel).reduce((sum, v, i) => sum + v * shares[i], 0);
  const ratio = (one, other) => {
    const [a, b] = [light(one), light(other)];
    return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  };
  const behind = (node) => {
    const above = [];
    for (; node; node = node.parentElement) above.push(parsed(getComputedStyle(node).backgroundColor));
    return above.reverse().reduce((under, colour) => over(colour, under), [255, 255, 255]);
  };
  const opacity = (node) => (node ? Number(getComputedStyle(node).opacity) * opacity(node.parentElement) : 1);
  const seen = (node) => node.checkVisibility({ visibilityProperty: true }) && !node.closest(".hidden, .skip, option");
  const faint = [];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const node = walk.currentNode.parentElement;
    if (!walk.currentNode.data.trim() || !seen(node) || node.closest("title")) continue;
    const style = getComputedStyle(node);
    const ground = behind(node.closest("svg") ?? node);
    let [r, g, b, a] = parsed(node.closest("svg text") ? style.fill : style.color);
    a *= opacity(node) * (node.closest("svg text") ? Number(style.fillOpacity) : 1);
    let under = ground;
    const shape = node.closest("g")?.querySelector("rect, polygon");
    if (node.closest("svg text") && shape) {
      const paint = getComputedStyle(shape);
      const [sr, sg, sb] = parsed(paint.fill);
      under = over([sr, sg, sb, Number(paint.fillOpacity)], ground);
    }
    const found = ratio(over([r, g, b, a], under), under);
    if (found < 4.5) faint.push(`${found.toFixed(2)} ${node.tagName} ${node.getAttribute("class")} ${walk.currentNode.data.trim().slice(0, 40)}`);
  }
  for (const node of document.querySelectorAll(".plane .point")) {
    const style = getComputedStyle(node);
    const ground = behind(node.closest("svg"));
    const [r, g, b] = parsed(style.fill);
    const found = ratio(over([r, g, b, Number(style.fillOpacity)], ground), ground);
    if (found < 3) faint.push(`${found.toFixed(2)} point ${node.getAttribute("class")}`);
  }
  return [...new Set(faint)];
}
