"""Where a model lives for inference: on one device, or spread by accelerate over cards, host memory and its own files.

Home is the first card, or the CPU where there is none. Everything but the decoder's layers stays there, the cache too.
Layers fill home, the other cards, then host memory; what fits nowhere is read from the weights' files at each use. No
layer is ever split. A layer in host memory or on disk is computed at home; one on another card is computed there, but
its attention at home, where the keys are.
"""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from unify_agent.errors import UserError
from unify_agent.model.attention import Attend
from unify_agent.model.bagel import Bagel
from unify_agent.model.decoder import Layer
from unify_agent.model.loading import Weights, on_meta

LAYERS = "language_model.model.layers"
ROOM = 0.25
"""Share of home's free memory that is left to the cache and to what a forward computes."""
GIB = 1 << 30


def default_dtype(device: torch.device) -> torch.dtype:
    """bfloat16 on a card, float32 on a CPU."""
    return torch.bfloat16 if device.type == "cuda" else torch.float32


def home_device() -> torch.device:
    """The first card, or the CPU."""
    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


def check_quant(quant: str | None) -> None:
    """Raises UserError when bitsandbytes, which `quant` needs, is not installed."""
    if quant is not None and importlib.util.find_spec("bitsandbytes") is None:
        raise UserError(f"--quant {quant} needs bitsandbytes, which is not installed: pip install 'unify-agent[quant]'")


def place(
    weights: Weights,
    dtype: torch.dtype,
    *,
    home: torch.device,
    spread: bool = False,
    quant: str | None = None,
    memory: Mapping[Any, int] | None = None,
) -> Bagel:
    """A model in evaluation mode, ready to generate.

    spread: over all there is (`layer_map`), else wholly at home. quant: `8bit` or `4bit` for the matrices of the
    decoder's layers. memory: device -> free bytes, where a card is its number and the host "cpu"; default: as measured.

    Raises:
        UserError: what must stay at home does not fit there, or layers that do not fit on cards were to be quantised.
    """
    model = on_meta(weights.config).to(dtype).eval().requires_grad_(False)
    here = "cpu" if home.type == "cpu" else home.index or 0
    layers = layer_map(model, here, quant, memory) if spread else dict.fromkeys(range(len(_layers(model))), here)
    if quant is not None:
        if not set(layers.values()) <= {here, *range(torch.cuda.device_count())}:
            raise UserError(f"--quant {quant}: the quantised layers do not fit on the cards; leave --quant out")

        from unify_agent.agent.quantise import quantise

    for module in _elsewhere(model).values():
        module.to_empty(device=here)
    weights.fill(model)
    for number, layer in enumerate(_layers(model)):
        if layers[number] != "disk":
            layer.to_empty(device="cpu" if quant else layers[number])
            weights.fill(model, under=f"{LAYERS}.{number}.")
        if quant is not None:
            quantise(layer, quant, dtype, layers[number])
    if set(layers.values()) != {here}:
        _dispatch(model, weights, dtype, layers, here)
    return model


def layer_map(
    model: Bagel, home: int | str, quant: str | None = None, memory: Mapping[Any, int] | None = None
) -> dict[int, int | str]:
    """Number of each decoder layer -> card, "cpu" or "disk"; for the arguments see `place`."""
    from accelerate import infer_auto_device_map
    from accelerate.utils import CustomDtype, get_max_memory

    free = dict(memory or get_max_memory())
    staying = sum(_bytes(module) for module in _elsewhere(model).values())
    left = int(free[home] * (1 - ROOM)) - staying
    largest = max(map(_bytes, _layers(model)))
    if left < largest:
        raise UserError(
            f"--device-map auto: {staying / GIB:.2f} GiB and a layer of {largest / GIB:.2f} GiB must be on device "
            f"{home}, which has {free[home] * (1 - ROOM) / GIB:.2f} GiB for weights; take a smaller --dtype"
        )
    small = {"8bit": torch.int8, "4bit": CustomDtype.INT4, None: None}[quant]
    found = infer_auto_device_map(
        model.get_submodule(LAYERS),
        {**free, home: left},
        no_split_module_classes=[Layer.__name__],
        dtype=small,
        clean_result=False,
    )
    return {int(name): device for name, device in found.items()}


def _layers(model: Bagel) -> nn.ModuleList:
    return model.get_submodule(LAYERS)  # type: ignore[return-value]


def _elsewhere(model: Bagel) -> dict[str, nn.Module]:
    """The modules beside the decoder's layers, together all of them, by name."""
    found: dict[str, nn.Module] = {}
    inside = [LAYERS[:n] for n, letter in enumerate(LAYERS) if letter == "."] + [LAYERS]
    for prefix in ("", *inside[:-1]):
        for name, module in model.get_submodule(prefix).named_children():
            path = f"{prefix}.{name}".removeprefix(".")
            if path not in inside:
                found[path] = module
    return found


def _bytes(module: nn.Module) -> int:
    return sum(p.numel() * p.element_size() for p in module.parameters())


def _dispatch(
    model: Bagel, weights: Weights, dtype: torch.dtype, layers: Mapping[int, int | str], home: int | str
) -> None:
    """accelerate's hooks, which bring weights and inputs together."""
    from accelerate import dispatch_model

    places: dict[str, int | str] = dict.fromkeys(_elsewhere(model), home)
    places |= {f"{LAYERS}.{number}": device for number, device in layers.items()}
    on_disk = tuple(f"{name}." for name, device in places.items() if device == "disk")
    index = {
        name: {"safetensors_file": str(each.file), "weight_name": name, "dtype": str(dtype).removeprefix("torch.")}
        for name, each in weights.tensors.items()
        if name.startswith(on_disk)
    }
    dispatch_model(model, places, main_device=home, offload_index=index or None)
    for number, device in layers.items():
        if device not in (home, "cpu", "disk"):
            _visit(_layers(model)[number], torch.device("cuda", int(device)), torch.device(home))


def _visit(layer: nn.Module, there: torch.device, home: torch.device) -> None:
    """A layer on another card: accelerate brings its tensors there; this brings the rest there and the result back."""

    def arrive(_: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        number, und, gen, routing, rope, attend = arguments
        return number, und, gen, _moved(routing, there), rope, _AtHome(attend, home)

    def leave(_: nn.Module, __: tuple[Any, ...], out: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
        return tuple(x.to(home) for x in out)

    layer.register_forward_pre_hook(arrive)
    layer.register_forward_hook(leave)


def _moved(holder: Any, device: torch.device) -> Any:
    """A copy of an object whose tensors are on `device`."""
    moved = copy.copy(holder)
    vars(moved).update({name: x.to(device) for name, x in vars(holder).items() if isinstance(x, Tensor)})
    return moved


class _AtHome:
    """Attention where the cache is, for queries, keys and values from another device."""

    def __init__(self, attend: Attend, home: torch.device) -> None:
        self.attend, self.home = attend, home

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self.attend(layer, q.to(self.home), k.to(self.home), v.to(self.home)).to(q.device)
