"""HMLSTM: the hierarchical multiscale LSTM as a torch module."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hmrnn import engines
from hmrnn.collapse import CollapseAlarm
from hmrnn.config import BOUNDARIES, COPY_BOUNDARIES, PRECISIONS, Boundary, CopyBoundary, Precision
from hmrnn.devices import any_weight, autocast_dtype, without_autocast
from hmrnn.dropout import drop_weights, mask
from hmrnn.engines.native.streams import try_step
from hmrnn.equations import LayerWeights
from hmrnn.errors import check_share
from hmrnn.layer import HMLSTMLayer
from hmrnn.recurrent import Call, Recurrent, Unrolled
from hmrnn.sequence import (
    COPY,
    FLUSH,
    UPDATE,
    HMLSTMOutput,
    HMLSTMState,
    Piecewise,
)


class HMLSTM(Recurrent):
    """A stack of LSTM layers in which each layer learns when a segment ends (Chung, Ahn and Bengio, 2017).

    When the detector of a layer fires (z = 1), the layer above UPDATEs from its state, and the layer itself FLUSHes at
    the next step. Otherwise the layer above COPYs its own state. The equations are in `hmrnn.equations`.

    Args:
        input_size: Number of features of x.
        hidden_sizes: Units of each layer, the lowest first; or one number for all, with `num_layers`.
        num_layers: Number of layers, if `hidden_sizes` is one number.
        layer_norm: Normalise the gates' pre-activations, and the cell inside its tanh.
        boundary: "step" for z~ > 0.5, "sample" for Bernoulli(z~), "soft" for z~ itself.
        copy_boundary: The boundary of a layer that copies: "hold" keeps it at 0, "recompute" evaluates the detector.
        boundary_bias: Initial bias b_z of the detectors: one number, or one for each layer but the last.
        slope: a of z~ = max(0, min(1, (a*s_z + 1) / 2)). A call may pass its own.
        batch_first: Use (B, T, ...) instead of (T, B, ...).
        precision: Precision of matrix products. "auto" rounds their operands to bfloat16 under
            `torch.autocast(…, torch.bfloat16)`, "bfloat16" always, "float32" never. The engines `native` and `triton`
            support bfloat16. Sums, cells, detectors and gradients stay float32.
        dropout: Training: share of a layer's units that the layer above sees as 0. The mask is drawn once for each row
            of a call, so that a copied state keeps its value. Detectors see all units.
        weight_drop: Training: share of the weights W, U and V that are 0, drawn once for each call. The detectors'
            weights are not dropped.
        engine: "auto", or the name of an engine. `rnn.engine` and `rnn.engine_reason` tell which one is in use. The
            event-driven engines support one backward pass; `reference` also supports a second, and torch.func.
        device: Device of the weights.
        dtype: Type of the weights.
    """

    needs_boundaries = False  # whether a call must give them
    dropout = weight_drop = 0.0  # of networks that were pickled before there was any
    _alarm: CollapseAlarm | None = None

    def __init__(
        self,
        input_size: int,
        hidden_sizes: int | Sequence[int],
        num_layers: int | None = None,
        *,
        layer_norm: bool = True,
        boundary: Boundary = "step",
        copy_boundary: CopyBoundary = "hold",
        boundary_bias: float | Sequence[float] = 0.0,
        slope: float = 1.0,
        batch_first: bool = False,
        dropout: float = 0.0,
        weight_drop: float = 0.0,
        precision: Precision = "auto",
        engine: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **of_lstm: Any,
    ) -> None:
        check_habits(of_lstm)
        super().__init__(input_size, hidden_sizes, num_layers, slope=slope, batch_first=batch_first)
        check_share("dropout", dropout)
        check_share("weight_drop", weight_drop)
        self.dropout, self.weight_drop = dropout, weight_drop
        if precision not in PRECISIONS:
            raise ValueError(f"precision must be one of {', '.join(PRECISIONS)}; got {precision!r}")
        self.precision = precision
        if boundary not in BOUNDARIES:
            raise ValueError(f"boundary must be one of {', '.join(BOUNDARIES)}; got {boundary!r}")
        if copy_boundary not in COPY_BOUNDARIES:
            raise ValueError(f"copy_boundary must be one of {', '.join(COPY_BOUNDARIES)}; got {copy_boundary!r}")
        self.layer_norm = layer_norm
        self.boundary = boundary
        self.copy_boundary = copy_boundary
        engines.check_request(engine)
        self._requested_engine = engine

        sizes = [input_size, *self.hidden_sizes]
        biases = detector_biases(boundary_bias, self.num_layers - 1)
        self.layers = nn.ModuleList(
            HMLSTMLayer(
                sizes[l],
                sizes[l + 1],
                sizes[l + 2] if l + 2 < len(sizes) else None,
                layer_norm=layer_norm,
                boundary_bias=[*biases, 0.0][l],
                device=device,
                dtype=dtype,
            )
            for l in range(self.num_layers)
        )

    @property
    def engine(self) -> str:
        """The name of the engine in use. The first access may build it."""
        return self._choose()[0]

    @property
    def engine_reason(self) -> str:
        """The reason for which this engine is in use, in one line."""
        return self._choose()[1]

    def _choose(self) -> tuple[str, str]:
        like = any_weight(self)
        return engines.choose(self._requested_engine, self.boundary, like.device, like.dtype)

    @property
    def drops(self) -> bool:
        """Whether a call now would drop something."""
        return self.training and (self.weight_drop > 0 or (self.dropout > 0 and self.num_layers > 1))

    @property
    def rounds_products(self) -> bool:
        return self.wants_bfloat16 and engines.ENGINES[self.engine].rounds(any_weight(self).dtype)

    @property
    def wants_bfloat16(self) -> bool:
        """Whether products are to be computed in bfloat16 where that can be done."""
        if self.precision == "auto":
            return autocast_dtype(any_weight(self).device) == torch.bfloat16
        return self.precision == "bfloat16"

    @property
    def soft(self) -> bool:
        return self.boundary == "soft"

    @property
    def state_sizes(self) -> tuple[tuple[int, ...], tuple[int, ...], int]:
        return self.hidden_sizes, self.hidden_sizes, self.num_layers - 1

    def weights(self) -> list[LayerWeights]:
        """The weights, layer by layer: parameters, or what hooks and parametrizations make of them."""
        return [layer() for layer in self.layers]

    def step(
        self,
        x: Tensor | Piecewise,
        state: HMLSTMState | None = None,
        boundaries: Tensor | None = None,
        slope: float | Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> tuple[HMLSTMOutput, HMLSTMState]:
        done = None if self.drops else try_step(self, x, state, boundaries, slope, generator)
        return super().step(x, state, boundaries, slope, generator) if done is None else done

    def unroll(self, call: Call) -> Unrolled:
        T, B, _ = call.shape
        if self.needs_boundaries and call.given is None and self.num_layers > 1:
            raise ValueError("boundaries must be given to an HRNN: (time, batch, layers - 1) of 0 and 1")
        if T == 1 and call.valid is None and not self.drops:
            given = None if call.given is None else call.given[0]
            step = try_step(self, call.x[0], call.state, given, call.slope, call.generator)
            if step is not None:
                out, state = step
                steps = tuple(layer[None] for layer in out.steps)
                return Unrolled(HMLSTMOutput(steps, out.z.unsqueeze(0), out.operations.unsqueeze(0)), state)
        uniforms = self._uniforms((T, B), call.generator, call.state.z.device) if call.given is None else None
        masks, weights = self._masks(B, call.generator), self._weights_of_call(call.generator)
        rules = engines.Rules(self.boundary, self.copy_boundary == "hold", uniforms, self.rounds_products, masks)
        trace = engines.ENGINES[self.engine].run(weights, call, rules)
        output = HMLSTMOutput(trace.steps, trace.z, operations(trace.z, call.state.z, call.valid))
        if self.training and self.warn_collapse and call.given is None and not torch.compiler.is_compiling():
            if self._alarm is None:
                self._alarm = CollapseAlarm(self.num_layers - 1)
            self._alarm.see(output)
        return Unrolled(output, trace.state)

    def _masks(self, B: int, generator: torch.Generator | None) -> tuple[Tensor, ...]:
        """The dropout masks of each layer but the last, if there is dropout."""
        if not self.drops or self.dropout == 0:
            return ()
        like = any_weight(self)
        return tuple(mask(like, (B, size), self.dropout, generator) for size in self.hidden_sizes[:-1])

    def _weights_of_call(self, generator: torch.Generator | None) -> list[LayerWeights]:
        weights = self.weights()
        if not self.drops or self.weight_drop == 0:
            return weights
        return [drop_weights(layer, self.weight_drop, generator) for layer in weights]

    def _uniforms(
        self, shape: tuple[int, ...], generator: torch.Generator | None, device: torch.device
    ) -> Tensor | None:
        if self.boundary != "sample":
            return None
        # float32 whatever the weights are, so that every dtype and engine sees the same numbers
        source = device if generator is None else generator.device
        uniforms = torch.rand((*shape, self.num_layers - 1), generator=generator, device=source, dtype=torch.float32)
        return uniforms.to(device, non_blocking=True)

    @torch.no_grad()
    def constrain_detectors(self, radius: float | None = None) -> None:
        """Projects the weights into each detector onto a ball. Call it after each optimiser step; a `Guide` does.

        It keeps s_z where the straight-through gradient is non-zero, and gradients from exploding on their way from one
        boundary to the next. The norm is that of (U_z, V_z, W_z) together; the bias is free.

        Args:
            radius: Radius of the ball. By default it falls with the root of the layer's units, because the norm of what
                a detector sees grows with it.
        """
        for layer, weights in zip(self.layers, self.weights(), strict=True):
            assert isinstance(layer, HMLSTMLayer)
            if weights.W_z is not None and weights.U_z is not None and weights.V_z is not None:
                blocks = {"W_z": weights.W_z, "U_z": weights.U_z, "V_z": weights.V_z}
                norm = torch.cat(tuple(blocks.values())).norm()
                limit = detector_radius(len(weights.U_z)) if radius is None else radius
                shrink = (limit / norm.clamp_min(torch.finfo(norm.dtype).tiny)).clamp_max(1.0)
                # first those that may refuse, so that nothing has changed if one does
                for name in sorted(blocks, key=layer._parameters.__contains__):
                    layer.rewrite(name, blocks[name] * shrink)

    def detector_sums(self, x: Tensor | Piecewise, before: HMLSTMState | None, out: HMLSTMOutput) -> Tensor:
        """(T, B, L-1): s_z of every detector at every step, from the output for x and the state before it.

        Time first. Hidden states are constants here: the gradient is that by the detectors' own weights.

        s_z = U_z h[t-1,l] + z[t-1,l] * V_z h[t-1,l+1] + z[t,l-1] * W_z h[t,l-1] + b_z
        """
        with without_autocast(out.z.device):  # detectors are computed in full, whatever products are
            sums = self._detector_sums(x, before, out)
            return torch.stack(sums, dim=-1) if sums else out.z.detach()

    def _detector_sums(self, x: Tensor | Piecewise, before: HMLSTMState | None, out: HMLSTMOutput) -> list[Tensor]:
        x = Piecewise.from_dense(x) if isinstance(x, Tensor) else x
        before = before or self.initial_state(out.z.shape[1])
        z, sums = out.z.detach(), []
        for l, w in enumerate(self.weights()[:-1]):
            assert w.U_z is not None
            assert w.V_z is not None
            assert w.W_z is not None
            assert w.b_z is not None
            fed = projected(x, w.W_z) if l == 0 else z[..., l - 1] * projected(out.steps[l - 1], w.W_z)
            own = delayed(projected(out.steps[l], w.U_z), before.h[l].detach() @ w.U_z)
            above = delayed(projected(out.steps[l + 1], w.V_z), before.h[l + 1].detach() @ w.V_z)
            sums.append(own + delayed(z[..., l], before.z[:, l]) * above + fed + w.b_z)
        return sums

    @torch.no_grad()
    def shift_detectors(self, shifts: Sequence[float | Tensor]) -> None:
        """Adds to the bias of each detector."""
        for layer, weights, shift in zip(self.layers, self.weights(), shifts, strict=False):
            assert isinstance(layer, HMLSTMLayer)
            own = layer._parameters.get("b_z")
            if weights.b_z is not None and (own is None or own.requires_grad):  # an HRNN's detectors are not used
                layer.rewrite("b_z", weights.b_z + shift)

    def extra_repr(self) -> str:
        return (
            f"{self.input_size}, {list(self.hidden_sizes)}, layer_norm={self.layer_norm}, boundary={self.boundary!r}, "
            f"copy_boundary={self.copy_boundary!r}, dropout={self.dropout}, weight_drop={self.weight_drop}, "
            f"engine={self._requested_engine!r}"
        )


# Arguments of torch.nn.LSTM: the values that change nothing, and what others are told.
HABITS = {
    "bias": (True, "the detectors need theirs"),
    "proj_size": (0, "a layer copies the hidden state that it gates; put a Linear behind the network"),
    "bidirectional": (False, "a boundary is found from the past; run a second HMLSTM over the reversed sequence"),
}


def check_habits(given: Mapping[str, Any]) -> None:
    """Refuses arguments that `HMLSTM` has not, and says why to those who know them from `torch.nn.LSTM`."""
    for name, value in given.items():
        if name not in HABITS:
            raise TypeError(f"HMLSTM got an unexpected argument {name!r}")
        harmless, reason = HABITS[name]
        if value != harmless:
            raise TypeError(f"HMLSTM has no {name}={value!r}: {reason}")


def operations(z: Tensor, z_start: Tensor, valid: Tensor | None) -> Tensor:
    """(T, B, L) int8: what each layer did, from the boundaries (T, B, L-1) and those before the first step (B, L-1)."""
    fires = z.detach() > 0.5
    T, B, _ = z.shape
    always, never = fires.new_ones(T, B, 1), fires.new_zeros(T, B, 1)
    flush = torch.cat([torch.cat([(z_start.detach() > 0.5).unsqueeze(0), fires[:-1]]), never], dim=-1)
    below = torch.cat([always, fires], dim=-1)
    done = torch.where(flush, FLUSH, torch.where(below, UPDATE, COPY))
    if valid is not None:
        done = torch.where(valid.unsqueeze(-1), done, COPY)
    return done.to(torch.int8)


def projected(steps: Piecewise, weights: Tensor) -> Tensor:
    """(T, B): the product of each step's vector, as a constant, with the weights."""
    return (steps.values.detach() @ weights)[steps.index]


def delayed(values: Tensor, first: Tensor) -> Tensor:
    """(T, B): at each step what was there one step before."""
    return torch.cat([first.unsqueeze(0), values[:-1]])


def detector_radius(units: int) -> float:
    """The radius of the norm ball for the weights into the detector of a layer with so many units."""
    return min(1.94, 11.3 / math.sqrt(units))  # 1 for 128 units; docs/log.md tells how it was found


def detector_biases(boundary_bias: float | Sequence[float], detectors: int) -> list[float]:
    if isinstance(boundary_bias, (int, float)):
        return [float(boundary_bias)] * detectors
    if len(boundary_bias) != detectors:
        raise ValueError(
            f"boundary_bias must be a number, or one for each layer but the last ({detectors}); got {boundary_bias!r}"
        )
    return [float(bias) for bias in boundary_bias]
