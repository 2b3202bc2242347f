"""Early stopping."""

from typing import Any

from lightning.pytorch.callbacks import EarlyStopping


class Patience(EarlyStopping):
    """Stops after so many validations without a better score. A resumed run takes the patience of its command."""

    def __init__(self, score: str, validations: int) -> None:
        super().__init__(score, mode="max", patience=validations)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict({**state_dict, "patience": self.patience})
