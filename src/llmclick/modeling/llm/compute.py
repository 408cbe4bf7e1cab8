"""Where a run computes and in which precision: decided once, without importing torch on machines that have no accelerator."""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from llmclick.errors import InputError, Problem

if TYPE_CHECKING:
    from llmclick.config.schema import Config

Device = Literal["cpu", "cuda", "mps"]
Precision = Literal["fp32", "bf16"]


@dataclass(frozen=True)
class Compute:
    """The device kind, the compute precision (weights and optimizer are always fp32), and what to tell the user about them."""

    device: Device
    precision: Precision
    notices: tuple[str, ...] = ()


def resolve_compute(config: Config) -> Compute:
    """What `compute.device` and `training.precision` mean on this machine. Raises InputError if the machine lacks it."""
    notices = []
    gpus = cuda_devices()
    wanted = config.compute.device
    device: Device = ("cuda" if gpus else "mps" if has_mps() else "cpu") if wanted == "auto" else wanted
    if (device == "cuda" and not gpus) or (device == "mps" and not has_mps()):
        raise InputError(
            Problem(
                where=config.where("compute.device"),
                key="compute.device",
                given=device,
                why=f"this machine has no usable {device} device",
                write="auto, or cpu",
            )
        )
    if device == "cuda" and gpus > 1:
        notices.append(f"{gpus} GPUs are visible: one is used (set CUDA_VISIBLE_DEVICES to choose which)")
    precision = config.training.precision
    if precision == "auto":
        precision = "bf16" if has_bf16(device) else "fp32"
    elif precision == "bf16" and not has_bf16(device):
        notices.append(
            "training.precision: bf16 gains nothing here, the processor has no arithmetic for it; auto would take fp32"
        )
    return Compute(device, precision, tuple(notices))


def cpu_features() -> frozenset[str]:
    """Flags of this processor as the kernel names them (Linux), else only its architecture's name."""
    flags = {platform.machine()}
    if sys.platform == "linux":
        with open("/proc/cpuinfo") as info:
            for line in info:
                if line.partition(":")[0].strip() in ("flags", "Features"):
                    flags.update(line.partition(":")[2].split())
                    break
    return frozenset(flags)


_WITHOUT_BF16 = frozenset(("SSE41", "AVX", "AVX2", "AVX2_VNNI", "AVX2_VNNI_2", "AVX512_CORE", "AVX512_CORE_VNNI"))
"""Limits of oneDNN, which computes torch's bf16 products on a CPU, under which it emulates them on every processor."""


def has_bf16(device: Device) -> bool:
    """Whether bf16 arithmetic is done by the hardware and not emulated."""
    if device == "cuda":
        import torch

        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    limit = os.environ.get("ONEDNN_MAX_CPU_ISA", os.environ.get("DNNL_MAX_CPU_ISA", ""))
    return device == "cpu" and limit.upper() not in _WITHOUT_BF16 and bool({"amx_bf16", "avx512_bf16"} & cpu_features())


@functools.cache
def cuda_devices() -> int:
    """How many CUDA or ROCm devices torch can use; 0 without importing torch where no GPU driver is installed."""
    if sys.platform == "darwin" or not any(map(_loads, ("libcuda.so.1", "nvcuda.dll", "libamdhip64.so"))):
        return 0
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def has_mps() -> bool:
    """Whether this is an Apple machine whose GPU torch can use."""
    return sys.platform == "darwin" and platform.machine() == "arm64"


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True
