"""Sets of tensors that no process owns: they stay on the device when their maker ends."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import json
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ._arguments import check_flag, check_text, shown
from ._errors import NotSupportedError, TmsError
from ._kept_set import Place, Set
from ._kept_versions import Following, NextVersion
from ._library import Library, load

if TYPE_CHECKING:
    import torch

_FORMAT = 2
_ALIGNMENT = 512  # as PyTorch's allocator gives it
_CHUNK = 1 << 30
_NO_SUCH_SET = 500


def kept(name: str) -> Kept:
    """A named set of tensors on one device, which any process of the user can map.

    It is a context manager:

        with tms.kept("qwen3-8b@sha") as k:
            if k.complete:
                k.attach(model)
            else:
                load(model)
                k.publish(model)

    The keeper (`tms keeper`) holds the memory, and the first call starts it. What is attached stays
    mapped as long as a tensor of it lives, also after the body.

    Args:
        name: 1 to 255 bytes, such as a model's name, its revision and the rank.

    Raises:
        TypeError, ValueError: it is no such name.
        TmsError: the keeper cannot be started, or does not answer.
        OutOfMemoryError: entering the body, of a demoted set for which its device has no room.
        NotPreloadedError: the process was started without libtms.so.
    """
    if not isinstance(name, str):
        raise TypeError(f"name must be a str such as 'qwen3-8b@sha', not {shown(name)}")
    if not 0 < len(check_text("name", name)) < 256:
        raise ValueError(f"name must have 1 to 255 bytes, not {shown(name)}")
    return Kept(load(), name)


class Kept:
    """A set; see `kept`. Not safe for use by several threads at once.

    Attributes:
        name: of the set.
        complete: whether the set could be attached when the body was entered.
    """

    def __init__(self, library: Library, name: str) -> None:
        self.name = name
        self.complete = False
        self._library = library
        self._set: Set | None = None
        self._published: weakref.ref[Set] | None = None  # what this process publishes here
        self._missing: TmsError  # why there is none

    def __enter__(self) -> Kept:
        try:
            self._set = Set(self._library, self.name, "attaching", self._library.c.tms_kept_open)
        except TmsError as error:
            if error.code != _NO_SUCH_SET:
                raise
            self._missing = error.with_traceback(None)  # its frames hold tensors
        self.complete = self._set is not None
        return self

    def __exit__(self, *exception: object) -> None:
        self._set = None

    def attach(
        self, module: torch.nn.Module | None = None, *, copy: bool = False
    ) -> dict[str, torch.Tensor]:
        """Returns the set's tensors by name: on the device where they lie, with their strides.

        Tensors that shared memory when they were published share it here. Without `copy` all
        processes have the same memory, read-only: `copy_` to it raises an error, and a kernel that
        writes it (`add_`, `zero_`) ends this process's CUDA context (error 700).

        Args:
            module: a `torch.nn.Module` whose parameters and buffers become these tensors. All that
                its state_dict has must be in the set, and the other way round, with the same shapes
                and dtypes; else nothing changes. Without `copy`, its parameters no longer require
                gradients.
            copy: whether to make private copies, which can be written.

        Raises:
            TmsError: there is no complete set of the name, or it was lost.
            ContentsError: with TMS_VERIFY=1, it is not as it was published.
            NotSupportedError: the set is on a device that this process does not see, or was made by
                another version of tms.
            TypeError, ValueError: the module is none, or does not fit.
        """
        check_flag("copy", copy)
        torch = importlib.import_module("torch")
        if module is not None and not isinstance(module, torch.nn.Module):
            raise TypeError(f"module must be a torch.nn.Module, not {module!r}")
        manifest = self._manifest()
        tensors = self._mapped(torch, manifest, 0 if copy else len(manifest["chunks"]))
        if module is not None:
            _assign(torch, module, tensors, frozen=not copy)
        return tensors

    def publish(self, source: torch.nn.Module | Mapping[str, torch.Tensor]) -> None:
        """Copies tensors into a new set of the name, which is complete when this returns.

        A set of the same name that is complete already is replaced: processes that have it keep it.
        If this process ends before, the new set is gone.

        Args:
            source: tensors by name, such as a state_dict, which stay as they are. Or a
                `torch.nn.Module`: all its parameters and buffers, which become read-only views of
                the set, one chunk of about 1 GiB after the other, so that the model is never on the
                device twice. All must be on one CUDA device.

        Raises:
            OutOfMemoryError: the device has no room. A module's tensors are still valid.
            TypeError, ValueError: a tensor is not on the one CUDA device, or has no plain memory,
                or the source is neither tensors by name nor a module.
            TmsError: the keeper was killed during the call, or another of its errors.
        """
        torch = importlib.import_module("torch")
        replaces = isinstance(source, torch.nn.Module)
        if not replaces and not isinstance(source, Mapping):
            raise TypeError(
                f"source must be a torch.nn.Module or a dict of tensors by name, not {source!r}"
            )
        tensors = dict(_owned(source) if replaces else source)
        self._publish(torch, tensors, set(tensors) if replaces else set(), replaces)

    def follow(self, module: torch.nn.Module | None = None, *, back: bool = False) -> Following:
        """Attaches the newest complete version, and can go on to later ones without a copy.

        Each set that takes over the name is the next version. A process that has published a module
        here follows what it has published.

        Args:
            module: as for `attach`; its parameters keep their addresses in all versions.
            back: whether the version before stays on the device after an `advance`, for `back`.

        Raises:
            As `attach`.
        """
        check_flag("back", back)
        if module is None and self._published and (published := self._published()):
            self._set = published
        tensors = self.attach(module)
        assert self._set is not None
        return Following(self.name, self._set, tensors, back)

    def next(
        self, device: torch.device | str | None = None, *, copy: bool = False
    ) -> contextlib.AbstractContextManager[dict[str, torch.Tensor]]:
        """The next version, to be written in the body: complete when the body ends.

        It has the tensors of the newest complete version, with the same names, shapes, dtypes and
        strides, in memory of its own on the same device. Processes that follow the set keep their
        version until they are told (`Following.advance`). A body that raises, and a process that
        ends in it, leave the set as it was. After the body the tensors are read-only, and no longer
        in the dict.

        Of a set that an engine has published, the dict has the parameters, by their names in a
        state_dict. What else the set has (buffers, work space) is as in the version before.

        Args:
            device: where the set is; another device is refused. To write from another one, copy
                there: `w[name].copy_(tensor)`.
            copy: whether the tensors begin with the contents of the version before; else these are
                unspecified.

        Raises:
            OutOfMemoryError: the device has no room for one more version.
            ValueError: the device is another one.
            TmsError: there is no complete set of the name, or the keeper was killed in the body.
        """
        check_flag("copy", copy)
        return NextVersion(self, device, copy)

    def _manifest(self) -> dict[str, Any]:
        if self._set is None:
            self.__enter__()
        if self._set is None:
            words = str(self._missing)
            if "publish" not in self._missing.cause:
                words += " Publish it first."
            raise TmsError(words, code=_NO_SUCH_SET, cause=self._missing.cause)
        manifest = self._set.manifest()
        if manifest.get("format") != _FORMAT:
            raise NotSupportedError(
                f"The set {self.name!r} has format {manifest.get('format')}, and this version of "
                f"tms reads {_FORMAT}. Publish it again."
            )
        return manifest

    def _mapped(self, torch: Any, manifest: dict[str, Any], private: int) -> dict[str, Any]:
        """The tensors; those in the chunks from number `private` on are copies."""
        assert self._set is not None
        chunks = self._set.attached(torch)
        chunks[private:] = [chunk.clone() for chunk in chunks[private:]]
        return {
            name: Place(**place).view(torch, chunks) for name, place in manifest["tensors"].items()
        }

    def _publish(
        self, torch: Any, tensors: dict[str, Any], shared: set[str], replaces: bool, **more: Any
    ) -> None:
        """As `publish`. `more` is for the manifest.

        Tensors without memory of those in `shared` lie in chunks of their own, from number
        "private" of the manifest on. If `replaces`, those in `shared` become views of the set.
        """
        device = _device_of(torch, tensors)
        places, contents, private = _plan(tensors, shared)
        sizes = [blocks[-1].offset + blocks[-1].size for blocks in contents]
        create = self._library.c.tms_kept_create
        made = Set(self._library, self.name, "publishing", create, device.index)
        chunks: list[Any] = []
        for number, blocks in enumerate(contents):
            torch.cuda.empty_cache()
            chunks.append(made.add(torch, number, max(sizes[number], 1)))
            while blocks:  # nothing here holds a storage then
                blocks.pop().copy_to(torch, chunks[number])
            for name in shared if replaces else ():
                if places[name].chunk == number:
                    tensors[name].data = places[name].view(torch, chunks)
        torch.cuda.empty_cache()
        manifest = {
            "format": _FORMAT,
            "tensors": {name: place._asdict() for name, place in places.items()},
            "private": private,
            "chunks": sizes,
            **more,
        }
        made.seal(json.dumps(manifest).encode())
        self._published = weakref.ref(made)
        for name in shared if replaces else ():
            tensors[name].requires_grad_(False)


@dataclasses.dataclass
class _Block:
    """The part of a storage that tensors use, in bytes."""

    storage: Any
    begin: int
    end: int
    shared: bool
    chunk: int = 0
    offset: int = 0  # in its chunk

    @property
    def size(self) -> int:
        return self.end - self.begin

    def copy_to(self, torch: Any, chunk: Any) -> None:
        empty = torch.empty(0, dtype=torch.uint8, device=chunk.device)
        own = empty.set_(self.storage, self.begin, (self.size,), (1,))
        chunk[self.offset : self.offset + self.size].copy_(own)


def span(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Elements from a tensor's first to its last."""
    last = sum((size - 1) * stride for size, stride in zip(shape, strides))
    return 0 if 0 in shape else last + 1


def _owned(module: Any) -> Iterator[tuple[str, Any]]:
    yield from module.named_parameters(remove_duplicate=False)
    yield from module.named_buffers(remove_duplicate=False)


def _device_of(torch: Any, tensors: Mapping[str, Any]) -> Any:
    """The device of all tensors, whose memory must be plain."""
    device = None
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            raise ValueError(f"{name!r} is no tensor")
        if tensor.device.type != "cuda" or tensor.device != (device or tensor.device):
            raise ValueError(f"{name!r} is on {tensor.device}: a set is for one CUDA device")
        if tensor.layout != torch.strided or any(
            (tensor.is_quantized, tensor.is_conj(), tensor.is_neg())
        ):
            raise ValueError(f"{name!r} has no plain memory: publish a dense, resolved tensor")
        device = tensor.device
    if device is None:
        raise ValueError("there is no tensor to publish")
    return device


def _plan(
    tensors: Mapping[str, Any], shared: set[str]
) -> tuple[dict[str, Place], list[list[_Block]], int]:
    """Where tensors go, what each chunk is made of, and the first chunk with nothing of `shared`.

    Tensors of one storage stay together.
    """
    blocks: dict[int, _Block] = {}
    found: dict[str, tuple[_Block, int, int]] = {}  # and the tensor's bytes in the storage
    for name in sorted(tensors, key=lambda name: name not in shared):
        tensor = tensors[name]
        storage, size = tensor.untyped_storage(), tensor.element_size()
        begin = tensor.storage_offset() * size
        end = begin + span(tensor.shape, tensor.stride()) * size
        block = blocks.setdefault(storage.data_ptr(), _Block(storage, begin, end, name in shared))
        block.begin, block.end = min(block.begin, begin), max(block.end, end)
        found[name] = block, begin, end
    contents: list[list[_Block]] = []
    filled = 0
    for block in blocks.values():
        mixed = contents and contents[-1][0].shared != block.shared
        if not contents or mixed or filled + block.size > _CHUNK:
            contents.append([])
            filled = 0
        block.chunk = len(contents) - 1
        block.offset = filled + block.begin % _ALIGNMENT  # as it is aligned now
        contents[-1].append(block)
        filled = -(-(block.offset + max(block.size, 1)) // _ALIGNMENT) * _ALIGNMENT
    places = {
        name: Place(
            chunk=block.chunk,
            offset=block.offset + begin - block.begin,
            bytes=end - begin,
            dtype=str(tensors[name].dtype).split(".")[-1],
            shape=list(tensors[name].shape),
            strides=list(tensors[name].stride()),
        )
        for name, (block, begin, end) in found.items()
    }
    return places, contents, sum(chunk[0].shared for chunk in contents)


def _assign(torch: Any, module: Any, tensors: Mapping[str, Any], frozen: bool) -> None:
    owned = dict(_owned(module))
    needed = [name for name in module.state_dict(keep_vars=True) if name in owned]
    wrong = [f"{name} is not in the set" for name in needed if name not in tensors]
    for name, tensor in tensors.items():
        has = owned.get(name)
        if has is None:
            wrong.append(f"the module has no {name}")
        elif has.shape != tensor.shape or has.dtype != tensor.dtype:
            wrong.append(
                f"{name} is {has.dtype} {tuple(has.shape)} in the module, and {tensor.dtype} "
                f"{tuple(tensor.shape)} in the set"
            )
    refuse("module", wrong)
    fresh: dict[int, Any] = {}
    for name, tensor in tensors.items():
        has = owned[name]
        if has.device == tensor.device:
            has.data = tensor
        else:
            path, _, leaf = name.rpartition(".")
            owner = module.get_submodule(path)
            if leaf in owner._parameters:
                made = torch.nn.Parameter(tensor, requires_grad=has.requires_grad)
                has = owner._parameters[leaf] = fresh.setdefault(id(has), made)
            else:
                has = owner._buffers[leaf] = tensor
        if frozen:
            has.requires_grad_(False)


def refuse(what: str, wrong: list[str]) -> None:
    """Raises ValueError if something is wrong."""
    if wrong:
        more = f", and {len(wrong) - 5} more" if len(wrong) > 5 else ""
        raise ValueError(f"the {what} does not fit the set: {'; '.join(wrong[:5])}{more}")
