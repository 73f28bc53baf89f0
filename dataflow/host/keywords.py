"""What a caller means by a keyword that a function hasn't: as NumPy, PyTorch or Keras call it, or misspelt."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterable, Sequence
from types import FunctionType
from typing import Any, NoReturn, TypeGuard, TypeVar, cast

from ..errors import InputError

F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C", bound=type)

_ALIKE = (
    ("axis", "axes", "dim", "dims"),
    ("keepdims", "keepdim", "keep_dims"),
    ("epsilon", "eps"),
    ("lr", "learning_rate"),
    ("betas", "beta", "momentum"),
    ("weight_decay", "decay", "wd"),
    ("strides", "stride"),
    ("pads", "pad", "padding"),
    ("dilations", "dilation", "dilation_rate"),
    ("kernel", "window", "kernel_size", "kernel_shape", "pool_size"),
    ("groups", "group", "num_groups"),
    ("features", "out_features", "units", "channels", "out_channels", "filters"),
    ("bias", "use_bias"),
    ("to", "dtype"),
    ("devices", "device", "providers"),
    ("seed", "random_state", "rng", "key"),
    ("perm", "permutation", "dims"),
    ("shape", "size", "sizes"),
    ("clip_norm", "max_norm", "grad_clip", "max_grad_norm"),
    ("accumulate", "gradient_accumulation_steps", "accumulate_grad_batches"),
    ("epochs", "num_epochs", "num_train_epochs", "max_epochs"),
    ("batch_size", "batch"),
    ("validation", "val_data", "validation_data", "eval_dataset"),
    ("val_split", "validation_split"),
    ("loss", "criterion", "loss_fn"),
)
_WITHIN = {"optimizer": ("lr", "learning_rate", "momentum", "weight_decay")}  # what another argument holds


UNKNOWN = "unknown"  # ``**unknown: Never`` of a method that is called too often for a wrapper, see ``refused``


class UnknownKeyword(InputError, TypeError):
    """A function takes no such keyword."""


def meant(given: str, known: Iterable[str]) -> str:
    """Which of ``known`` to write for a keyword, for messages: one that means the same, or is spelt nearly so."""
    import difflib  # seldom needed, and not loaded otherwise

    names = list(known)
    alike = [name for group in _ALIKE if given in group for name in group if name in names]
    alike += [name for name, held in _WITHIN.items() if given in held and name in names]
    near = alike[:1] or difflib.get_close_matches(given, names, 1)
    return f"; use {near[0]}= for {given}=" if near else ""


def answered(function: F) -> F:
    """The function, whose errors for unknown keywords say which are meant."""

    @functools.wraps(function)
    def call(*args: Any, **given: Any) -> Any:
        try:
            return function(*args, **given)
        except TypeError as error:
            if error.__traceback__ is None or error.__traceback__.tb_next is not None:
                raise  # from within
            unknown = _unknown(function, args, given)
            if unknown is None:
                raise
            raise unknown from None

    return cast(F, call)


def answering(*but: str) -> Callable[[C], C]:
    """Decorates a class, whose construction and public methods, its bases' too, are ``answered``.

    Args:
        but: methods that are called so often that the call of a wrapper counts.
    """

    def decorated(cls: C) -> C:
        for base in cls.__mro__:
            for name, found in list(vars(base).items()):
                public = name == "__init__" or (not name.startswith("_") and name not in but)
                if public and _is_ours(found) and found.__code__.co_argcount + found.__code__.co_kwonlyargcount > 1:
                    setattr(base, name, answered(found))
        return cls

    return decorated


def _unknown(function: Callable[..., Any], args: tuple[Any, ...], given: Iterable[str]) -> UnknownKeyword | None:
    kinds = inspect.signature(function).parameters.values()
    if any(one.kind is one.VAR_KEYWORD and one.name != UNKNOWN for one in kinds):
        return None
    known = [one.name for one in kinds if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
    known = known[1:] if known[:1] == ["self"] else known
    wrong = next((name for name in given if name not in known), None)
    if wrong is None:
        return None
    owner, _, name = function.__qualname__.rpartition(".")
    if args and any(base.__qualname__ == owner for base in type(args[0]).__mro__):
        owner = type(args[0]).__name__  # users know no base of it
    name = f"{owner}.{name}".removeprefix(".").removesuffix(".__init__")
    return _refusal(name, wrong, known)


def refused(method: Callable[..., Any], owner: object, given: Iterable[str]) -> NoReturn:
    """Raises the error for what a method found among its ``**unknown``."""
    error = _unknown(cast(Any, method), (owner,), given)
    assert error is not None
    raise error


def passed_on(function: Callable[..., Any], options: Iterable[str], to: Iterable[str] | Callable[..., Any]) -> None:
    """Checks the ``**options`` that a function of ours passes on.

    Args:
        function: which gets them.
        options: their names.
        to: those that there are, or the class whose arguments behind the first they are.

    Raises:
        UnknownKeyword: there is no such option; it names the function's own arguments too, one of which may be meant.
    """
    taken = [one.name for one in _parameters(to)[1:]] if callable(to) else list(to)
    wrong = next((name for name in options if name not in taken), None)
    if wrong is not None:
        own = [one.name for one in _parameters(function) if one.kind is not one.VAR_KEYWORD]
        raise _refusal(function.__name__, wrong, [*own, *taken])


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    return list(inspect.signature(function).parameters.values())


def _refusal(name: str, wrong: str, known: Sequence[str]) -> UnknownKeyword:
    return UnknownKeyword(f"{name} has no argument {wrong!r}; it has: {', '.join(known)}{meant(wrong, known)}")


def answer(module_name: str, *names: str) -> None:
    """Makes functions and classes of ours that a module has ``answered``, in place: all public ones by default.

    Modules that users import names from call it at their end, so that the order of imports doesn't matter.
    """
    module = sys.modules[module_name]
    for name in names or [name for name in vars(module) if not name.startswith("_")]:
        found = vars(module).get(name)
        if isinstance(found, type):
            made = vars(found).get("__init__")
            if _is_ours(made):
                type.__setattr__(found, "__init__", answered(made))
        elif _is_ours(found) and found.__module__ == module.__name__:
            setattr(module, name, answered(found))


def _is_ours(function: Any) -> TypeGuard[FunctionType]:
    """Whether it is a function of this package that isn't ``answered`` yet."""
    ours = isinstance(function, FunctionType) and function.__module__.startswith("dataflow.")
    return ours and not hasattr(function, "__wrapped__")
