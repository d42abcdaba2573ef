"""The cards that a plan may be made for. Sources stand beside the numbers (docs/planning.md)."""

from __future__ import annotations

from dataclasses import dataclass

from unify_agent.errors import UserError, nearest


@dataclass(frozen=True)
class Card:
    """`gib`: memory as its driver reports it. `tflops`: dense bf16, no sparsity. `link`: GB/s that it sends to the
    other cards of its node (NVLink, one way)."""

    name: str
    gib: float
    tflops: float
    link: float

    @property
    def flops(self) -> float:
        """Floating-point operations a second."""
        return self.tflops * 1e12


CARDS = {
    card.name: card
    for card in (
        # FLOP/s and links: NVIDIA's data sheets (H20: public specifications that agree, facts: training, numbers).
        # Memory: what nvidia-smi prints: 97,871, 143,771, 81,920, 81,559 and 143,771 MiB.
        Card("h20", 95.6, 148.0, 450.0),
        Card("h20_141gb", 140.4, 148.0, 450.0),
        Card("a100_80gb", 80.0, 312.0, 300.0),
        Card("h100_80gb", 79.6, 989.0, 450.0),
        Card("h200", 140.4, 989.0, 450.0),
    )
}


def card_of(name: str) -> Card:
    if name not in CARDS:
        raise UserError(f"planning.card={name}: no such card{nearest(name, list(CARDS))}")
    return CARDS[name]
