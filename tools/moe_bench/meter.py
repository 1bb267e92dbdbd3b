"""Clock and power of the device while it is measured, read from the driver's management library."""

import ctypes
import statistics
import threading
import time
from types import TracebackType
from typing import Self

from msgspec import Struct

LIBRARY = "libnvidia-ml.so.1"
PERIOD_S = 0.01
CLOCK_SM = 1  # NVML_CLOCK_SM
POWER_INSTANT = 186  # NVML_FI_DEV_POWER_INSTANT; the plain reading is an average over a second


class FieldValue(ctypes.Structure):
    """``nvmlFieldValue_t``."""

    _fields_ = (
        ("field_id", ctypes.c_uint),
        ("scope_id", ctypes.c_uint),
        ("timestamp", ctypes.c_longlong),
        ("latency_us", ctypes.c_longlong),
        ("value_type", ctypes.c_uint),
        ("status", ctypes.c_uint),
        ("value", ctypes.c_ulonglong),
    )


class Sample(Struct, frozen=True):
    """One reading."""

    at_s: float
    sm_mhz: float
    watts: float


class Meter:
    """Reads clock and power in a thread while it is entered; without the library it reads nothing, and says so.

    Parameters
    ----------
    uuid : str
        Of the device, ``GPU-...``.
    """

    def __init__(self, uuid: str) -> None:
        self.samples: list[Sample] = []
        self.reason: str | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._device = ctypes.c_void_p()
        try:
            self._library = ctypes.CDLL(LIBRARY)
            self._check("nvmlInit_v2")
            self._find(uuid)
            self.samples.append(self._read())
        except OSError as error:
            self.reason = str(error)

    def read(self, *spans: tuple[float, float]) -> dict[str, float]:
        """Return the medians over spans of ``time.monotonic``, each from and to; nothing without samples."""
        found = [s for s in self.samples if any(first_s <= s.at_s <= last_s for first_s, last_s in spans)]
        if not found:
            return {}
        return {
            "sm_mhz": statistics.median(sample.sm_mhz for sample in found),
            "watts": statistics.median(sample.watts for sample in found),
        }

    def __enter__(self) -> Self:
        if self.reason is None:
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _find(self, uuid: str) -> None:
        """Find the device; where the library calls it otherwise, as inside of virtual machines, the only one is it."""
        count = ctypes.c_uint()
        self._check("nvmlDeviceGetCount_v2", ctypes.byref(count))
        if count.value == 1:
            self._check("nvmlDeviceGetHandleByIndex_v2", 0, ctypes.byref(self._device))
        else:
            self._check("nvmlDeviceGetHandleByUUID", uuid.encode(), ctypes.byref(self._device))

    def _sample(self) -> None:
        while not self._stop.wait(PERIOD_S):
            try:
                self.samples.append(self._read())
            except OSError as error:
                self.reason = str(error)
                return

    def _read(self) -> Sample:
        clock, average, field = ctypes.c_uint(), ctypes.c_uint(), FieldValue(field_id=POWER_INSTANT)
        self._check("nvmlDeviceGetClockInfo", self._device, CLOCK_SM, ctypes.byref(clock))
        self._check("nvmlDeviceGetFieldValues", self._device, 1, ctypes.byref(field))
        milliwatts = field.value & 0xFFFFFFFF
        if field.status:
            self._check("nvmlDeviceGetPowerUsage", self._device, ctypes.byref(average))
            milliwatts = average.value
        return Sample(time.monotonic(), clock.value, milliwatts / 1e3)

    def _check(self, name: str, *arguments: object) -> None:
        status = getattr(self._library, name)(*arguments)
        if status:
            raise OSError(f"{name} returned {status}")
