"""Which activations a family's MLP may have, under which names."""

from __future__ import annotations

from typing import NamedTuple

from splitserve.engine_core.checkpoint.config.fields import Fields


class Activation(NamedTuple):
    """The activation of a family.

    Attributes:
        field: names it in config.json.
        names: under which it is known, the default first.
        kind: its name in ModelConfig.
    """

    field: str
    names: tuple[str, ...]
    kind: str

    def read(self, config: Fields) -> str:
        """Return its kind.

        Raises:
            ModelLoadError: config.json names another one.
        """
        name = config.text(self.field, self.names[0])
        if name not in self.names:
            raise config.error(self.field, f"must be {' or '.join(self.names)}, got {name!r}")
        return self.kind


TANH_GELUS = ("gelu_pytorch_tanh", "gelu_new", "gelu_fast")
SILU = Activation("hidden_act", ("silu", "swish"), "silu")
GELU_TANH = Activation("hidden_activation", TANH_GELUS, "gelu_tanh")
