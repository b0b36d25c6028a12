from typing import Any

from dspy.utils.callback import BaseCallback as BaseCallback

def __getattr__(name: str) -> Any: ...
