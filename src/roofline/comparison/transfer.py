"""From one measured step to another deployment: what the model misses of the one is missing of the other too."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from roofline.arrays import Array
from roofline.deployment import Deployment
from roofline.errors import check_numbers
from roofline.serving.bands import tpot_band

# Log half-width of an 80 % band of the host's time for launches: vLLM's pieces of a layer take 0.10 to 0.34 ms on three
# hosts, launches of a kernel 25 to 56 us (see the engine profiles).
HOST = math.log(3.4) / 2.0


@dataclass(frozen=True, slots=True)
class Transfer:
    """A decode step of one deployment, as a measurement of another one lets expect it."""

    seconds: Array
    device: Array  # factor on what the model says of the device
    host: Array  # and on what it says of launching
    plain_s: Array  # without the measurement


def transferred(measured_s: Array, given: Deployment, wanted: Deployment, batch: Array, context: Array) -> Transfer:
    """A decode step of `wanted`, where `given` was measured to take `measured_s`.

    A step is as long as the slower of device and host. If it was measured to be longer than both, the one that needs
    the less unusual factor for it has it: kernels are known to some 15 %, hosts differ threefold. If it was shorter,
    each is lowered as far as it has to be. The factors then hold of the other deployment.

    Formula:  t - g = max(r D, h H);  t' = max(r D', h H') + g'
              longer: h = (t - g)/H, r = 1 if |ln h|/s_H < |ln r|/s_D, else r = (t - g)/D, h = 1
              shorter: r = min(1, (t - g)/D), h = min(1, (t - g)/H)
    Args:     measured_s t [s]; given, wanted; batch [-], context [tokens]
    Returns:  Transfer
    Assumes:  device time D (kernels and collectives), launches H and gap g as the model has them; s_D is the log
              half-width of the band of TPOT, s_H that of hosts; one factor for all kernels, one for all launches
    Error:    not measured
    Source:   derivation
    """
    check_numbers("measured_s", measured_s, low=1e-9)
    (device, host, gap), (other_device, other_host, other_gap) = (_pace(d, batch, context) for d in (given, wanted))
    busy = np.maximum(measured_s - gap, 1e-9)
    r, h = busy / device, np.where(host > 0, busy / np.where(host > 0, host, 1.0), np.inf)
    low, high = tpot_band(given)
    hosts = np.abs(np.log(h)) / HOST < np.abs(np.log(r)) / (math.log(high / low) / 2.0)
    longer = busy > np.maximum(device, host)
    r = np.where(longer, np.where(hosts, 1.0, r), np.minimum(r, 1.0))
    h = np.where(longer, np.where(hosts, h, 1.0), np.minimum(h, 1.0))
    seconds = np.maximum(r * other_device, h * other_host) + other_gap
    return Transfer(seconds[()], r[()], h[()], wanted.decode_step(batch, context).total_s)


def _pace(where: Deployment, batch: Array, context: Array) -> tuple[Array, Array, Array]:
    """Seconds of a decode step on the device, of launching it, and of the gap before the next."""
    step, profile = where.decode_step(batch, context), where.engine.step
    each = np.asarray(batch, float) / where.plan.dp
    launch = where.decode_launch.seconds(each / where.plan.pp)
    return step.total_s - step.host_gap_s * step.scale, launch, profile.host_gap_s + profile.host_sequence_s * each
