"""Changes to a model that undo themselves, in reverse order, when their context is left."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

from torch import nn


class Changes(ExitStack):
    """The structural half of a fault: attributes, hooks and forwards, each with its own undo.

    Values of parameters and buffers are not undone here; the injection's snapshot puts those back.

    >>> layer = nn.Dropout(0.1)
    >>> with Changes() as changes:
    ...     changes.set(layer, "p", 0.5)
    ...     layer.p
    0.5
    >>> layer.p
    0.1
    """

    def set(self, owner: object, name: str, value: object) -> None:
        """Assign an attribute; on leaving, the former value comes back, or the attribute goes if there was none."""
        registered = isinstance(owner, nn.Module) and (name in owner._modules or name in owner._buffers)
        if registered or name in vars(owner):
            self.callback(setattr, owner, name, getattr(owner, name))
        else:
            self.callback(delattr, owner, name)
        setattr(owner, name, value)

    def before(self, module: nn.Module, hook: Callable) -> None:
        """Run `hook(module, args, kwargs)` before the module; it may return other (args, kwargs)."""
        self.callback(module.register_forward_pre_hook(hook, with_kwargs=True).remove)

    def after(self, module: nn.Module, hook: Callable) -> None:
        """Run `hook(module, args, output)` after the module; it may return another output."""
        self.callback(module.register_forward_hook(hook).remove)
