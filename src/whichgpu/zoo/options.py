"""Options of zoo workloads: what stands after the `?`, checked and turned into values.

Imports no torch. What each option means is said in docs/add-a-workload.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from whichgpu.errors import WorkloadError
from whichgpu.workload import nearest

# What a precision computes in, besides the float32 of weights and reductions.
PRECISIONS = {
    "fp32": ("float32",),
    "tf32": ("float32", "tf32"),
    "fp16": ("float32", "float16"),
    "bf16": ("float32", "bfloat16"),
    "pure-bf16": ("bfloat16",),
}
# Name -> class in torch.optim. LBFGS is left out: it calls the model several times a step.
OPTIMIZERS = {
    "sgd": "SGD",
    "adam": "Adam",
    "adamw": "AdamW",
    "adamax": "Adamax",
    "nadam": "NAdam",
    "radam": "RAdam",
    "rmsprop": "RMSprop",
    "adagrad": "Adagrad",
    "adadelta": "Adadelta",
    "adafactor": "Adafactor",
}
FUSED = frozenset({"sgd", "adam", "adamw", "adagrad"})  # the classes of torch.optim with a `fused` argument (2.14)
TRAINING = (
    "precision",
    "optimizer",
    "foreach",
    "fused",
    "weight_decay",
    "clip",
    "accumulate",
    "checkpoint",
)
_SWITCH = {"1": True, "true": True, "on": True, "0": False, "false": False, "off": False}


class Options:
    """The options of one workload, taken one by one; `finish` refuses what nobody took."""

    def __init__(self, where: str, given: Mapping[str, str]) -> None:
        self.where = where
        self._left = dict(given)
        self._known: set[str] = set()

    def text(self, key: str, default: str | None = None) -> str | None:
        """The value as it was typed."""
        self._known.add(key)
        return self._left.pop(key, default)

    def choice(self, key: str, default: str, allowed: Iterable[str]) -> str:
        """One of `allowed`."""
        value = self.text(key, default)
        names = list(allowed)
        if value not in names:
            raise WorkloadError(f"{self.where}: {key}={value} is unknown; {key} is one of {', '.join(names)}")
        return value

    def switch(self, key: str) -> bool | None:
        """True for 1, False for 0, None when not given."""
        value = self.text(key)
        if value is None:
            return None
        if value.lower() not in _SWITCH:
            raise WorkloadError(f"{self.where}: {key}={value} is unknown; {key} is 1 or 0")
        return _SWITCH[value.lower()]

    def count(self, key: str, default: int) -> int:
        """A whole number of 1 or more."""
        value = self.text(key)
        if value is None:
            return default
        if not (value.isascii() and value.isdigit() and int(value) > 0):
            raise WorkloadError(f"{self.where}: {key}={value} is not a whole number of 1 or more")
        return int(value)

    def number(self, key: str, default: float | None = None) -> float | None:
        """A finite number of 0 or more; None when not given and without a default."""
        value = self.text(key)
        if value is None:
            return default
        try:
            number = float(value)
        except ValueError:
            number = -1.0
        if not 0 <= number < float("inf"):
            raise WorkloadError(f"{self.where}: {key}={value} is not a number of 0 or more")
        return number

    def rest(self) -> dict[str, str]:
        """What nobody has taken yet; the caller answers for it."""
        left, self._left = self._left, {}
        return left

    def finish(self, others: Iterable[str] = ()) -> None:
        """Raise WorkloadError for an option that nobody took."""
        if self._left:
            raise self.unknown(min(self._left), others)

    def unknown(self, key: str, others: Iterable[str] = ()) -> WorkloadError:
        """The error for an unknown option, with the nearest known ones, or all of them when none is near."""
        names = sorted({*self._known, *others})
        if key == "data":
            return WorkloadError(f"{self.where}: it takes no data from disk; leave data out")
        hint = nearest(key, names) or f"; it has {', '.join(sorted(self._known))}"
        return WorkloadError(f"{self.where}: unknown option {key}{hint}")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How a model is trained, apart from the model and its data."""

    precision: str
    optimizer: str
    foreach: bool | None = None  # None: PyTorch's own choice, which is foreach on CUDA
    fused: bool | None = None
    weight_decay: float | None = None  # None: the optimizer's own default
    clip: float | None = None  # largest norm of all gradients together; None: no clipping
    accumulate: int = 1  # micro batches that one batch is split into
    checkpoint: bool = False  # recompute activations in the backward pass

    @property
    def dtypes(self) -> tuple[str, ...]:
        """What the training computes in."""
        return PRECISIONS[self.precision]


def read_settings(options: Options, **defaults: str) -> Settings:
    """Take the options that every adapter has; `defaults` are spelled as options are."""
    precision = options.choice("precision", defaults.get("precision", "fp32"), PRECISIONS)
    optimizer = options.choice("optimizer", defaults.get("optimizer", "sgd"), OPTIMIZERS)
    settings = Settings(
        precision=precision,
        optimizer=optimizer,
        foreach=options.switch("foreach"),
        fused=options.switch("fused"),
        weight_decay=options.number("weight_decay"),
        clip=options.number("clip") or None,
        accumulate=options.count("accumulate", 1),
        checkpoint=bool(options.switch("checkpoint")),
    )
    if settings.fused and settings.foreach:
        raise WorkloadError(f"{options.where}: foreach=1 and fused=1 exclude each other; give one of them")
    if settings.fused and optimizer not in FUSED:
        names = ", ".join(sorted(FUSED))
        raise WorkloadError(f"{options.where}: optimizer={optimizer} has no fused version; fused=1 is for {names}")
    return settings


def check_positions(where: str, sequence: int, positions: int) -> None:
    """Raise WorkloadError for a sequence that is longer than the model has positions."""
    if sequence > positions:
        raise WorkloadError(f"{where}: seq={sequence} is longer than the model's {positions} positions")


def refuse_checkpoint(where: str, settings: Settings) -> Settings:
    """The settings, or WorkloadError where they ask to recompute activations and the model has no such switch."""
    if settings.checkpoint:
        raise WorkloadError(f"{where}: this model has no gradient checkpointing; leave checkpoint out")
    return settings


def refuse_adversarial(where: str, settings: Settings) -> Settings:
    """The settings of two networks against each other, or WorkloadError for what their step does not do."""
    refuse_checkpoint(where, settings)
    if settings.precision not in ("fp32", "tf32"):
        raise WorkloadError(f"{where}: precision={settings.precision} is not built in; precision is fp32 or tf32")
    if settings.clip is not None or settings.accumulate != 1:
        raise WorkloadError(f"{where}: its step has two losses and neither clips nor accumulates; leave both out")
    return settings
