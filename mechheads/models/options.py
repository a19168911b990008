"""How a model is loaded, besides its name: the flags that all commands share."""

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Literal

from . import locate

if TYPE_CHECKING:
    from .cache import ModelCache
    from .model import Model


@dataclass(frozen=True)
class ModelOptions:
    """Options of `mechheads.load` that every command takes.

    Args:
        backend: hooked or bridge (TransformerLens 4 has only the latter); default: hooked
        revision: branch, tag or commit of a hub model
        device: cpu, cuda, cuda:1 or mps; default: the best one available
        dtype: float32, float64, bfloat16 or float16
        process: fold layer norms and centre weights, as from_pretrained does
        n_devices: GPUs to spread the layers over
        device_map: auto, balanced or sequential: how transformers places the layers (bridge)
        quantize: 8bit or 4bit: round the weights with bitsandbytes (bridge)
        n_ctx: longest input in tokens; default: the model's own limit, at most 2048
        prepend_bos: true or false; default: TransformerLens's choice for the architecture
    """

    backend: Literal["hooked", "bridge"] | None = None
    revision: str | None = None
    device: str | None = None
    dtype: str = "float32"
    process: bool = False
    n_devices: int = 1
    device_map: Literal["auto", "balanced", "sequential"] | None = None
    quantize: Literal["8bit", "4bit"] | None = None
    n_ctx: int | None = None
    prepend_bos: bool | None = None

    def find(self, name: str, quiet: bool = False) -> locate.Source:
        """Locate the model's files, or raise; needs no torch."""
        return locate.find(name, self.revision, quiet=quiet)

    def size(self, name: str) -> float:
        """Bytes of the model's weights: about how long a pass takes, next to other models."""
        return 1.0 + sum(file.stat().st_size for file in self.find(name, quiet=True).files)

    def load(self, name: str, cache: "ModelCache | None" = None, quiet: bool = False) -> "Model":
        """Load the model, from the cache if possible."""
        from .load import load

        return load(name, cache=cache, quiet=quiet, **asdict(self))
