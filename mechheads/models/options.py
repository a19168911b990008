"""How a model is loaded, besides its name: the flags that all commands share."""

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from . import locate

if TYPE_CHECKING:
    from .cache import ModelCache
    from .model import Model


@dataclass(frozen=True)
class ModelOptions:
    """Options of `mechheads.load` that every command takes.

    Args:
        revision: branch, tag or commit of a hub model
        device: cpu, cuda, cuda:1 or mps; default: the best one available
        dtype: float32, float64, bfloat16 or float16
        process: fold layer norms and centre weights, as from_pretrained does
        n_devices: GPUs to spread the layers over
        n_ctx: longest input in tokens; default: the model's own limit, at most 2048
        prepend_bos: true or false; default: TransformerLens's choice for the architecture
    """

    revision: str | None = None
    device: str | None = None
    dtype: str = "float32"
    process: bool = False
    n_devices: int = 1
    n_ctx: int | None = None
    prepend_bos: bool | None = None

    def find(self, name: str, quiet: bool = False) -> locate.Source:
        """Locate the model's files, or raise; needs no torch."""
        return locate.find(name, self.revision, quiet=quiet)

    def load(self, name: str, cache: "ModelCache | None" = None, quiet: bool = False) -> "Model":
        """Load the model, from the cache if possible."""
        from .load import load

        return load(name, cache=cache, quiet=quiet, **asdict(self))
