"""What a run of a level may be told on the command line, and each level's own defaults."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Options:
    """How much load for how long.

    Attributes:
        streams: open at a time.
        rate: new requests per second: while streams are opened, or of S3.
        seconds: length of what is measured.
        settle_s: S1, S2, S7: all streams are open for so long before anything is measured.
        step_ms: duration of an engine's step, in which every stream gets a token.
        frontends, engines, clients: processes of each kind.
        tokens: of a request that ends by itself.
        kill_every_s: S5: a random engine is killed so often.
    """

    streams: int = 10_000
    rate: float = 300.0
    seconds: float = 60.0
    settle_s: float = 5.0
    step_ms: float = 1000.0
    frontends: int = 4
    engines: int = 1
    clients: int = 1
    tokens: int = 32
    kill_every_s: float = 300.0

    def shown(self) -> dict[str, float]:
        """Return the options by name."""
        return asdict(self)


# S2, S3 and S7 are scaled down for two cores, which clients, frontends and engine share.
DEFAULTS = {
    "s1": Options(),
    "s2": Options(streams=2_000, step_ms=50.0, frontends=2),
    "s3": Options(rate=300.0, seconds=600.0, step_ms=20.0, frontends=2, streams=1_000),
    "s4": Options(streams=64, seconds=600.0, step_ms=20.0, frontends=1, tokens=100),
    "s5": Options(streams=64, seconds=28_800.0, step_ms=20.0, frontends=2, engines=2),
    # So fast and long that the kernel's buffers of a client that does not read are full for half of the time.
    "s7": Options(streams=1_000, step_ms=50.0, frontends=2, seconds=180.0),
}
