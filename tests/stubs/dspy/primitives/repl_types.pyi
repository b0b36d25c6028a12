from pydantic import BaseModel

class REPLHistory(BaseModel):
    def __len__(self) -> int: ...
