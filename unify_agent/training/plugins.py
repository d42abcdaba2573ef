"""Sources named in a recipe as `package.module:Class`: applications plug in without the library knowing them."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError

from unify_agent.errors import UserError, nearest


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
    """`kind(*arguments, **options)`. Raises UserError, naming the option and the nearest real one, when it does not
    take the options of a recipe, or not of that type."""
    name = getattr(kind, "__name__", kind)
    signature = inspect.signature(kind)
    known = list(signature.parameters)[len(arguments) :]
    for option in options:
        if option not in known:
            raise UserError(f"{key}: {name} has no option {option!r}{nearest(option, known)}")
    try:
        signature.bind(*arguments, **options)
    except TypeError as error:
        raise UserError(f"{key}={options}: {name}: {error}") from None
    types = get_type_hints(kind.__init__ if inspect.isclass(kind) else kind)
    for option, value in options.items():
        if option in types:
            try:
                adapter = TypeAdapter(types[option], config=ConfigDict(arbitrary_types_allowed=True))
                adapter.validate_python(value, strict=True)
            except ValidationError as error:
                raise UserError(f"{key}.{option}={value!r}: {name}: {error.errors()[0]['msg']}") from None
    return kind(*arguments, **options)
