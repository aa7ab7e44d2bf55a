"""Writes forward/calls/functions.txt: the functions of the headers of CUDA and NVML, by version.

It downloads NVIDIA's wheels with those headers, and needs a C preprocessor. Tests read the list and
download nothing. Run this when a new CUDA has come out, give each new function a class in
forward/calls/classes.txt, and run `go generate ./forward/calls`.
"""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys
import tempfile
import zipfile

LIST = pathlib.Path(__file__).parent.parent / "forward" / "calls" / "functions.txt"
VERSIONS = ["12.0", "12.4", "12.9", "13.0", "13.1", ""]  # "": the newest
WHEELS = ["nvidia-cuda-runtime", "nvidia-cuda-profiler-api", "nvidia-nvml-dev"]
HEADERS = ["cuda.h", "cudaProfiler.h", "cuda_runtime_api.h", "cuda_profiler_api.h", "nvml.h"]
# cuda_runtime_api.h includes this one, which comes with the compiler's wheel.
HOST_DEFINES = "".join(
    f"#define {name}\n"
    for name in [
        "__host__",
        "__device__",
        "__cudart_builtin__",
        "__device_builtin__",
        "CUDARTAPI",
        "CUDARTAPI_CDECL",
        "__device_builtin_texture_type__",
        "__device_builtin_surface_type__",
        "__forceinline__",
        "__builtin_align__(n)",
        "__align__(n)",
        "__specialization_static",
        "__CUDACC_VER_MAJOR__ 0",
    ]
)
FUNCTION = re.compile(
    r"(?:\w+[\s*]+)+?((?:cu[A-Z]|cuda[A-Z]|nvml[A-Z])\w*)\s*\(([^()]*(?:\([^()]*\)[^()]*)*)\)$"
)
TYPEDEF = re.compile(r"\bPFN_(cu\w+?)_v(\d+)(_pts[zd]|_ptds)?\)")
SUFFIX = re.compile(r"(_v(\d+))?(_ptsz|_ptds)?$")


def download(wheel: str, version: str, folder: pathlib.Path) -> None:
    name = f"{wheel}-cu12" if version.startswith("12") else wheel
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--only-binary",
            ":all:",
            "--platform",
            "manylinux2014_x86_64",
            "--platform",
            "manylinux1_x86_64",
            "--platform",
            "manylinux_2_17_x86_64",
            "--dest",
            str(folder),
            f"{name}=={version}.*" if version else name,
        ],
        check=True,
    )
    for path in folder.glob("*.whl"):
        with zipfile.ZipFile(path) as archive:
            archive.extractall(folder)
        path.unlink()


def headers_of(version: str, folder: pathlib.Path) -> dict[str, pathlib.Path]:
    for wheel in WHEELS:
        download(wheel, version, folder)
    return {path.name: path for path in folder.rglob("*.h")}


def declared(header: pathlib.Path, folders: list[pathlib.Path]) -> dict[str, str]:
    """The symbols of a header, with old versions and per-thread streams, and parameters' types."""
    text = subprocess.run(
        [
            "cc",
            "-E",
            "-P",
            "-D__CUDA_API_VERSION_INTERNAL",
            *(f"-I{folder}" for folder in folders),
            str(header),
        ],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    found = {}
    for statement in re.split(r"[;{}]", text):
        statement = re.sub(r"__attribute__\s*\(\(.*?\)\)", "", statement)
        match = FUNCTION.search(" ".join(statement.split()))
        if match and "typedef" not in statement:
            found[match[1]] = ", ".join(type_of(p) for p in parameters(match[2]))
    return found


def parameters(text: str) -> list[str]:
    split = [p.strip() for p in re.split(r",(?![^()]*\))", text)]
    return [] if split in (["void"], [""]) else split


def type_of(parameter: str) -> str:
    parameter = parameter.split("=")[0].strip()  # C++ has defaults
    array = "*" if parameter.endswith("]") else ""
    parameter = re.sub(r"\[.*\]$", "", parameter)
    if "(" in parameter:
        return "void(*)"
    named = re.match(r"(.*?[\s*])(\w+)$", parameter)
    kinds = {"int", "char", "long", "short", "unsigned"}
    kept = named[1] if named and named[2] not in kinds else parameter
    kept = re.sub(r"\b(struct|enum)\s+", "", kept).strip()
    return re.sub(r"\s*\*\s*", "*", kept) + array


def numbers(typedefs: pathlib.Path) -> dict[tuple[str, str], set[int]]:
    """By name and kind of stream, the CUDA versions that brought a new function of that name."""
    found: dict[tuple[str, str], set[int]] = {}
    for name, number, suffix in TYPEDEF.findall(typedefs.read_text()):
        found.setdefault((name, suffix), set()).add(int(number))
    return found


def since_of(symbols: set[str], brought: dict[tuple[str, str], set[int]]) -> dict[str, int]:
    """The first CUDA version of each symbol: the oldest of a name has no suffix, the next _v2."""
    families: dict[tuple[str, str], list[tuple[int, str]]] = {}
    for symbol in symbols:
        match = SUFFIX.search(symbol)
        assert match
        families.setdefault((symbol[: match.start()], match[3] or ""), []).append(
            (int(match[2] or 1), symbol)
        )
    since: dict[str, int] = {}
    for family, members in families.items():
        versions = sorted(brought.get(family, set()))
        if len(versions) == len(members):
            since.update(zip((symbol for _, symbol in sorted(members)), versions, strict=True))
    return since


def main() -> None:
    lists: dict[str, dict[str, str]] = {}
    seen: dict[str, list[str]] = {}
    brought: dict[tuple[str, str], set[int]] = {}
    names = []
    with tempfile.TemporaryDirectory() as work:
        stub = pathlib.Path(work) / "stub"
        (stub / "crt").mkdir(parents=True)
        (stub / "crt" / "host_defines.h").write_text(HOST_DEFINES)
        for version in VERSIONS:
            headers = headers_of(version, pathlib.Path(work) / (version or "newest"))
            defined = re.search(r"#define CUDA_VERSION (\d+)", headers["cuda.h"].read_text())
            assert defined
            name = f"{int(defined[1]) // 1000}.{int(defined[1]) % 1000 // 10}"
            names.append(name)
            for typedefs in ("cudaTypedefs.h", "cudaProfilerTypedefs.h"):
                for family, found in numbers(headers[typedefs]).items():
                    brought.setdefault(family, set()).update(found)
            for header in HEADERS:
                for symbol, types in declared(
                    headers[header], [headers["cuda.h"].parent, stub]
                ).items():
                    before = HEADERS[: HEADERS.index(header)]
                    if any(symbol in lists.get(other, {}) for other in before):
                        continue  # a header includes others
                    lists.setdefault(header, {})[symbol] = types
                    seen.setdefault(symbol, []).append(name)
    since = since_of(set().union(*lists.values()), brought)
    lines = [
        "# Generated by scripts/list-functions.py. Each line: a symbol; the CUDA version that",
        "# brought it, where the headers tell; the first and the last of the headers below that",
        "# declare it; its parameters' types.",
        f"# headers: {' '.join(names)}",
    ]
    for header in HEADERS:
        lines.append(f"[{header}]")
        for symbol, types in sorted(lists[header].items()):
            where = f"{seen[symbol][0]}-{seen[symbol][-1]}"
            lines.append(f"{symbol} {since.get(symbol, '-')} {where} ({types})")
    LIST.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
