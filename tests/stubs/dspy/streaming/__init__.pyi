from typing import Any

class StreamListener:
    signature_field_name: str
    predict: Any
    predict_name: str | None
    allow_reuse: bool
    def __init__(
        self,
        signature_field_name: str,
        predict: Any = None,
        predict_name: str | None = None,
        allow_reuse: bool = False,
    ) -> None: ...
    def __getattr__(self, name: str) -> Any: ...

class StreamResponse:
    predict_name: str
    signature_field_name: str
    chunk: str
    is_last_chunk: bool

class StatusMessage:
    message: str

class StatusMessageProvider: ...

def __getattr__(name: str) -> Any: ...
