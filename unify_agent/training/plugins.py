"""Sources named in a recipe as `package.module:Class`: applications plug in without the library knowing them."""

from __future__ import annotations

import importlib
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


def build(name: str, options: dict[str, Any], key: str) -> Any:
    """Call the named class with `options`. Raises UserError when it does not take them."""
    kind = load(name, key)
    try:
        return kind(**options)
    except TypeError as error:
        if error.__traceback__ is not None and error.__traceback__.tb_next is not None:
            raise  # raised inside the class, not by the call
        raise UserError(f"{key}={name}: {error}") from None
