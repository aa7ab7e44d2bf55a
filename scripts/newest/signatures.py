"""Whether a function takes a call, or another function can take its place."""

from __future__ import annotations

import ast
import inspect

_KIND = inspect.Parameter


def refusal(call: ast.Call, lists: list[ast.arguments]) -> str:
    """Why no overload takes a call; "" if one does."""
    positional = [one for one in call.args if not isinstance(one, ast.Starred)]
    names = {one.arg: None for one in call.keywords if one.arg}
    partly = len(positional) < len(call.args) or len(names) < len(call.keywords)
    why = ""
    for arguments in lists:
        signature = inspect.Signature(_parameters(arguments))
        bind = signature.bind_partial if partly else signature.bind
        try:
            bind(*positional, **names)
            return ""
        except TypeError as error:
            why = f"{error}: it takes ({ast.unparse(arguments)})"
    return why


def misfit(theirs: ast.arguments, ours: ast.arguments) -> str:
    """Why ours cannot take a call that theirs takes; "" if it can. Both without `self`."""
    left = _positional(ours)
    for name in _positional(theirs):
        if left and left[0] != name and not ours.vararg:
            return f"it has {name!r} where ours has {left[0]!r}"
        if not left and not ours.vararg:
            return f"it has {name!r}, which ours lacks"
        left = left[1:]
    required = left[: max(0, len(left) - len(ours.defaults))]
    if required and not theirs.kwarg:
        return f"it has no {required[0]!r}"
    named = {one.arg for one in (*ours.args, *ours.kwonlyargs)}
    for one in theirs.kwonlyargs:
        if one.arg not in named and not ours.kwarg:
            return f"it has {one.arg!r}, which ours lacks"
    their_names = {one.arg for one in (*theirs.args, *theirs.kwonlyargs)}
    for one, default in zip(ours.kwonlyargs, ours.kw_defaults):
        if default is None and one.arg not in their_names and not theirs.kwarg:
            return f"it has no {one.arg!r}"
    return ""


def without_first(arguments: ast.arguments, count: int = 1) -> ast.arguments:
    """Parameters without the first ones."""
    return ast.arguments(
        posonlyargs=[],
        args=[*arguments.posonlyargs, *arguments.args][count:],
        vararg=arguments.vararg,
        kwonlyargs=arguments.kwonlyargs,
        kw_defaults=arguments.kw_defaults,
        kwarg=arguments.kwarg,
        defaults=arguments.defaults,
    )


def _positional(arguments: ast.arguments) -> list[str]:
    return [one.arg for one in (*arguments.posonlyargs, *arguments.args)]


def _parameters(arguments: ast.arguments) -> list[inspect.Parameter]:
    made = []
    positional = [*arguments.posonlyargs, *arguments.args]
    first_default = len(positional) - len(arguments.defaults)
    for index, one in enumerate(positional):
        only = index < len(arguments.posonlyargs)
        kind = _KIND.POSITIONAL_ONLY if only else _KIND.POSITIONAL_OR_KEYWORD
        default = None if index >= first_default else _KIND.empty
        made.append(inspect.Parameter(one.arg, kind, default=default))
    if arguments.vararg:
        made.append(inspect.Parameter(arguments.vararg.arg, _KIND.VAR_POSITIONAL))
    for one, value in zip(arguments.kwonlyargs, arguments.kw_defaults):
        default = _KIND.empty if value is None else None
        made.append(inspect.Parameter(one.arg, _KIND.KEYWORD_ONLY, default=default))
    if arguments.kwarg:
        made.append(inspect.Parameter(arguments.kwarg.arg, _KIND.VAR_KEYWORD))
    return made
