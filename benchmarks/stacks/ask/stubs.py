"""Stand-ins for packages that an engine imports and that do not matter for positions: kernels, GPUs, servers."""

import contextlib
import importlib.abc
import importlib.machinery
import sys
import types
from typing import Any

# an engine asks in a try block whether they are there, and goes on without them
MISSING = {
    *(
        "triton",
        "triton_kernels",
        "flashinfer",
        "flash_attn",
        "deep_gemm",
        "xformers",
        "cutlass",
        "tilelang",
        "humming",
    ),
    *("zentorch", "torch_xla", "torch_npu", "torchada", "habana_frameworks", "intel_extension_for_pytorch", "amdsmi"),
    *("libtpu", "tpu_inference", "vllm_ascend", "sgl_kernel_npu", "mlx", "cupy", "ray"),
}
ENGINES = ("site-packages/vllm/", "site-packages/sglang/")


class Nothing:
    """False, and itself again whatever is done with it; as a decorator it returns what it decorates."""

    def __init__(self, *given: Any, **more: Any) -> None: ...

    def __bool__(self) -> bool:
        return False

    def __call__(self, *given: Any, **more: Any) -> Any:
        """Return a decorated function, or nothing."""
        return given[0] if len(given) == 1 and not more and callable(given[0]) else Nothing()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name not in ("__version__", "__name__", "__file__"):
            raise AttributeError(name)
        return {"backend": "cpu", "__version__": "0.0.0"}.get(name, Nothing())

    def __getitem__(self, key: Any) -> Any:
        return Nothing()

    def __iter__(self) -> Any:
        return iter(())

    def __mro_entries__(self, bases: Any) -> Any:
        return (Base,)

    def __or__(self, other: Any) -> Any:
        return other

    def __ror__(self, other: Any) -> Any:
        return other

    def __index__(self) -> int:
        return 0


class _Meta(type):
    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Nothing()


class Base(metaclass=_Meta):
    """A class that an engine inherits from."""

    def __init__(self, *given: Any, **more: Any) -> None: ...

    def __init_subclass__(cls, **more: Any) -> None: ...

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        return core_schema.any_schema()


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds stand-ins for packages that an engine's files import and that are not installed."""

    def __init__(self, asked: set[str]) -> None:
        self.asked, self.known = asked, {"torchvision"}  # which files of transformers need all the same

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        """Find a stand-in."""
        top = name.split(".")[0]
        if top in (MISSING - self.asked) | {"vllm", "sglang"}:
            return None
        frame = sys._getframe(1)
        while frame.f_back is not None and "importlib" in frame.f_code.co_filename:
            frame = frame.f_back
        if top not in self.known and not any(part in frame.f_code.co_filename for part in ENGINES):
            return None
        self.known.add(top)
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        """Make a module whose classes are empty and whose other names are nothing."""
        module: Any = types.ModuleType(spec.name)
        module.__path__, module.__version__, module.__file__ = [], "0.0.0", "nowhere"

        def get(name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            return type(name, (Base,), {}) if name[:1].isupper() else Nothing()

        module.__getattr__ = get
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        """Run nothing."""


def install(*asked: str) -> None:
    """Put stand-ins behind everything that is installed; `asked` are those of MISSING that an engine must have."""
    import transformers.utils.import_utils as known

    for name in dir(known):  # transformers remembers what is installed: it must look before the stand-ins are there
        if name.startswith("is_") and name.endswith("available"):
            with contextlib.suppress(Exception):
                getattr(known, name)()
    sys.meta_path.append(Finder(set(asked)))


def register_hub() -> None:
    """Let transformers load files of the hub's InternLM 2 and 3: every field is kept as it is."""
    from transformers import AutoConfig, PretrainedConfig

    for kind in ("internlm2", "internlm3"):
        name = f"InternLM{kind[-1]}Config"
        with contextlib.suppress(ValueError):
            AutoConfig.register(kind, type(name, (PretrainedConfig,), {"model_type": kind, "__init__": _keep}))


def _keep(self: Any, **fields: Any) -> None:
    from transformers import PretrainedConfig

    fields = {"rope_theta": 10000, "rope_scaling": None, "bias": self.model_type == "internlm2"} | fields
    for key in ("rope_theta", "rope_scaling", "bias", "qkv_bias"):
        setattr(self, key, fields.pop(key, False))
    PretrainedConfig.__init__(self, **fields)
