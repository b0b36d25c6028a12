from typing import Any

class DSPyError(Exception): ...

class AdapterParseError(DSPyError):
    lm_response: str
    parsed_result: Any
    def __init__(
        self,
        adapter_name: str,
        signature: Any,
        lm_response: str,
        message: str | None = None,
        parsed_result: Any = None,
    ) -> None: ...

def is_retryable_lm_error(error: BaseException) -> bool: ...
def __getattr__(name: str) -> Any: ...
