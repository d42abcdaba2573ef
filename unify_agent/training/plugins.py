"""Sources named in a recipe as `package.module:Class`: applications plug in without the library knowing them."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any

from unify_agent.errors import UserError


def load(name: str, key: str) -> Any:
    """The object that `package.module:Name` names. Raises UserError naming the config key at fault."""
    module_name, _, attribute = name.partition(":")
    if not attribute:
        raise UserError(f"{key}={name}: write package.module:Class")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name == error.name or module_name.startswith(error.name + ".")):
            raise
        raise UserError(f"{key}={name}: there is no module {error.name} (run from the checkout's root)") from None
    try:
        return getattr(module, attribute)
    except AttributeError:
        raise UserError(f"{key}={name}: {module_name} has no {attribute}") from None


def call(kind: Callable[..., Any], arguments: tuple[Any, ...], options: dict[str, Any], key: str) -> Any:
    """`kind(*arguments, **options)`. Raises UserError when it does not take the options of a recipe."""
    try:
        inspect.signature(kind).bind(*arguments, **options)
    except TypeError as error:
        raise UserError(f"{key}={options}: {getattr(kind, '__name__', kind)}: {error}") from None
    return kind(*arguments, **options)
