from typing import Any

class FinalOutput:
    output: Any
