"""The row kernels: all of a layer's step but its matrix product. One program for each batch row.

The letters are those of `hmrnn.equations`; y is z_below. Imported only when the engine is chosen: it needs triton.

    T  time steps      B  batch rows      L  layers      l  this one, from 0
    H, HA, HB          units of this layer, of the one above, of the one below (or features of x)
    K, KA, KB          the same for a row of the operands, see `buffers`

Tensors come whole and contiguous, and `t` says where in them: so a launch makes no views, and the same kernel serves
every step. No two programs write to the same place, and sums are trees: the same input gives the same bits.
"""

# mypy: ignore-errors
# What is here is compiled by triton, not run by Python.

import triton
import triton.language as tl


@triton.jit
def sigmoid(x):
    e = tl.exp(-tl.abs(x))  # at most 1: nothing overflows
    return tl.where(x >= 0, 1.0, e) / (1.0 + e)


@triton.jit
def tanh(x):
    """Near zero by its series, where the quotient would lose the digits. (libdevice's is not in the interpreter.)"""
    e = tl.exp(-2.0 * tl.abs(x))
    quotient = (1.0 - e) / (1.0 + e)
    u = tl.minimum(x * x, 0.015625)
    p = 21844.0 / 6081075.0 - u * (929569.0 / 638512875.0)
    p = 62.0 / 2835.0 - u * (1382.0 / 155925.0 - u * p)
    p = 1.0 / 3.0 - u * (2.0 / 15.0 - u * (17.0 / 315.0 - u * p))
    return tl.where(tl.abs(x) < 0.125, x - x * u * p, tl.where(x < 0, -quotient, quotient))


@triton.jit
def four(at, j, units, H: tl.constexpr):
    """The parts of a row of 4H: forget, input, output gate and proposal."""
    return (
        tl.load(at + j, units, 0.0),
        tl.load(at + H + j, units, 0.0),
        tl.load(at + 2 * H + j, units, 0.0),
        tl.load(at + 3 * H + j, units, 0.0),
    )


@triton.jit
def store_four(at, j, units, f, i, o, g, H: tl.constexpr):
    kind = at.dtype.element_ty
    tl.store(at + j, f.to(kind), units)
    tl.store(at + H + j, i.to(kind), units)
    tl.store(at + 2 * H + j, o.to(kind), units)
    tl.store(at + 3 * H + j, g.to(kind), units)


@triton.jit
def add_four(at, j, units, f, i, o, g, H: tl.constexpr):
    f_, i_, o_, g_ = four(at, j, units, H)
    store_four(at, j, units, f_ + f, i_ + i, o_ + o, g_ + g, H)


@triton.jit
def sum_four(f, i, o, g):
    return tl.sum(f + i + o + g)


@triton.jit
def inverse_root(variance):
    """NaN if it overflowed, as in `hmrnn.equations`: 0 would make finite numbers of what was divided by it."""
    return tl.where(variance < float("inf"), 1.0 / tl.sqrt(variance), float("nan"))


@triton.jit
def normalise_four(f, i, o, g, units, H: tl.constexpr, EPS: tl.constexpr):
    """x_hat of layer normalisation over all 4H, and 1 / the standard deviation."""
    mean = sum_four(f, i, o, g) / (4 * H)
    f, i, o, g = (
        tl.where(units, f - mean, 0.0),
        tl.where(units, i - mean, 0.0),
        tl.where(units, o - mean, 0.0),
        tl.where(units, g - mean, 0.0),
    )
    rstd = inverse_root(sum_four(f * f, i * i, o * o, g * g) / (4 * H) + EPS)
    return f * rstd, i * rstd, o * rstd, g * rstd, rstd


@triton.jit
def normalise(c, units, H: tl.constexpr, EPS: tl.constexpr):
    centred = tl.where(units, c - tl.sum(c) / H, 0.0)
    rstd = inverse_root(tl.sum(centred * centred) / H + EPS)
    return centred * rstd, rstd


@triton.jit
def activate(f, i, o, g):
    return sigmoid(f), sigmoid(i), sigmoid(o), tanh(g)


@triton.jit
def choice(z, y):
    """The coefficients flush + update, update, copy."""
    update = (1.0 - z) * y
    return z + update, update, (1.0 - z) * (1.0 - y)


@triton.jit
def dot(vector, weights, j, units):
    return tl.sum(vector * tl.load(weights + j, units, 0.0))


@triton.jit
def fires(s_z, slope, uniforms, at, SAMPLED: tl.constexpr):
    """bound(z~) for step and sample. As in `hmrnn.boundary`, to the bit."""
    a_s = slope * s_z
    z_tilde = tl.where(tl.abs(a_s) < 1.0, (a_s + 1.0) / 2.0, tl.where(a_s <= 0.0, 0.0, 1.0))
    fired = tl.load(uniforms + at).to(z_tilde.dtype) < z_tilde if SAMPLED else z_tilde > 0.5
    return tl.where(fired, 1.0, 0.0).to(s_z.dtype)


@triton.jit(do_not_specialize=["t", "B"])
def forward_row(
    t, B, s, hs, cs, hs_above, below, zs, out_z, s_zs, given, uniforms, valid,
    b, gain, gain_c, bias_c, U_z, V_z, W_z, b_z, slope, mask, operand, operand_above, operand_below,
    l: tl.constexpr, L: tl.constexpr, H: tl.constexpr, HA: tl.constexpr, HB: tl.constexpr,
    K: tl.constexpr, KA: tl.constexpr, KB: tl.constexpr, PLACE_ABOVE: tl.constexpr, EPS: tl.constexpr,
    NORM: tl.constexpr, GIVEN: tl.constexpr, SAMPLED: tl.constexpr, HOLD: tl.constexpr, PADDED: tl.constexpr,
    MASKED: tl.constexpr, BH: tl.constexpr, BA: tl.constexpr, BB: tl.constexpr,
):  # fmt: skip
    """From s, h[t-1], c[t-1] and z to h, c and z of the step, and to the operands of the products that need h."""
    row = tl.program_id(0).to(tl.int64)
    at = t * B + row  # of what is there for each step; in hs, cs, zs and operands, of what was before the step
    now = at + B
    j = tl.arange(0, BH)
    units = j < H
    h, c = tl.load(hs + at * H + j, units, 0.0), tl.load(cs + at * H + j, units, 0.0)
    z = tl.load(zs + at * L + l)
    y = z * 0.0 + 1.0 if l == 0 else tl.load(out_z + at * L + (l - 1))
    f, i, o, g = four(s + at * (4 * H), j, units, H)
    if NORM:
        f, i, o, g, _ = normalise_four(f, i, o, g, units, H, EPS)
        gain_f, gain_i, gain_o, gain_g = four(gain, j, units, H)
        f, i, o, g = f * gain_f, i * gain_i, o * gain_o, g * gain_g
    b_f, b_i, b_o, b_g = four(b, j, units, H)
    f, i, o, g = activate(f + b_f, i + b_i, o + b_o, g + b_g)
    event, update, copy = choice(z, y)
    c_new = event * (i * g) + (update * f + copy) * c
    squashed = c_new
    if NORM:
        squashed, _ = normalise(tl.where(units, c_new, 0.0), units, H, EPS)
        squashed = squashed * tl.load(gain_c + j, units, 0.0) + tl.load(bias_c + j, units, 0.0)
    h_new = event * (o * tanh(squashed)) + copy * h
    if PADDED:
        alive = tl.load(valid + at) != 0
        h_new, c_new = tl.where(alive, h_new, h), tl.where(alive, c_new, c)
    tl.store(hs + now * H + j, h_new, units)
    tl.store(cs + now * H + j, c_new, units)
    kind = operand.dtype.element_ty
    tl.store(operand + now * K + j, h_new.to(kind), units)
    if l > 0:
        z_down = tl.load(zs + now * L + (l - 1))
        tl.store(operand_below + now * KB + HB + j, (z_down * h_new).to(kind), units)
    if l < L - 1:
        ja, jb = tl.arange(0, BA), tl.arange(0, BB)
        h_above = tl.load(hs_above + at * HA + ja, ja < HA, 0.0)
        h_below = tl.load(below + (at if l == 0 else now) * HB + jb, jb < HB, 0.0)
        s_z = dot(h, U_z, j, units) + z * dot(h_above, V_z, ja, ja < HA)
        s_z = s_z + y * dot(h_below, W_z, jb, jb < HB) + tl.load(b_z)
        if GIVEN:
            z_new = tl.load(given + at * (L - 1) + l)
        else:
            z_new = fires(s_z, tl.load(slope), uniforms, at * (L - 1) + l, SAMPLED)
            if HOLD:
                z_new = event * z_new
        z_out = z_new
        if PADDED:
            z_out, z_new = tl.where(alive, z_new, 0.0), tl.where(alive, z_new, z)
        tl.store(s_zs + at * L + l, s_z)
        tl.store(out_z + at * L + l, z_out)
        tl.store(zs + now * L + l, z_new)
        handed = h_new
        if MASKED:
            handed = h_new * tl.load(mask + row * H + j, units, 0.0)
        tl.store(operand_above + at * KA + PLACE_ABOVE + j, (z_out * handed).to(kind), units)


@triton.jit(do_not_specialize=["t", "B"])
def backward_row(
    t, B, s, hs, cs, hs_above, zs, out_z, s_zs, uniforms, valid,
    b, gain, gain_c, bias_c, U_z, V_z, V_z_below, W_z_above, slope, mask,
    d_h, d_z, dh_carried, dc_carried, dz_carried, dz_now, ds_z, d_operand, d_operand_above, d_operand_below, ds,
    sum_b, sum_gain, sum_gain_c, sum_bias_c,
    l: tl.constexpr, L: tl.constexpr, H: tl.constexpr, HA: tl.constexpr, HB: tl.constexpr,
    K: tl.constexpr, KA: tl.constexpr, KB: tl.constexpr, PLACE_ABOVE: tl.constexpr, EPS: tl.constexpr,
    NORM: tl.constexpr, GIVEN: tl.constexpr, SAMPLED: tl.constexpr, HOLD: tl.constexpr, PADDED: tl.constexpr,
    MASKED: tl.constexpr, BH: tl.constexpr, BA: tl.constexpr,
):  # fmt: skip
    """From the gradients by h, c and z of the step to those by s (ds), s_z (ds_z), h[t-1], c[t-1] and the two z.

    What comes by matrix products lies in d_operand: of this layer and the one below from step t+1, of the one above
    from step t. Each gradient by an operand z * h is shared out here: to h, and to the z of this layer.
    """
    row = tl.program_id(0).to(tl.int64)
    at = t * B + row
    now = at + B
    j = tl.arange(0, BH)
    units = j < H
    dh = tl.load(d_h + at * H + j, units, 0.0) + tl.load(dh_carried + row * H + j, units, 0.0)
    dh += tl.load(d_operand + row * K + j, units, 0.0)
    dc = tl.load(dc_carried + row * H + j, units, 0.0)
    if l > 0:
        z_down, ds_z_down = tl.load(zs + now * L + (l - 1)), tl.load(ds_z + now * L + (l - 1))
        down = tl.load(d_operand_below + row * KB + HB + j, units, 0.0)
        dh += z_down * (down + ds_z_down * tl.load(V_z_below + j, units, 0.0))
    if l < L - 1:
        up = tl.load(d_operand_above + row * KA + PLACE_ABOVE + j, units, 0.0)
        if MASKED:
            up *= tl.load(mask + row * H + j, units, 0.0)
        if l < L - 2:
            up += tl.load(ds_z + at * L + (l + 1)) * tl.load(W_z_above + j, units, 0.0)
        dh += tl.load(out_z + at * L + l) * up
        dz = tl.load(d_z + at * (L - 1) + l) + tl.load(dz_now + row * L + l)
        dz += tl.sum(up * tl.load(hs + now * H + j, units, 0.0))
        ja = tl.arange(0, BA)
        flushed = tl.load(d_operand + row * K + H + ja, ja < HA, 0.0)
        flushed += tl.load(ds_z + now * L + l) * tl.load(V_z + ja, ja < HA, 0.0)
        dz_state = tl.sum(flushed * tl.load(hs_above + now * HA + ja, ja < HA, 0.0)) + tl.load(dz_carried + row * L + l)
        dz += dz_state
    dh_stays, dc_stays = dh, dc
    if PADDED:
        alive = tl.load(valid + at) != 0
        dh, dc = tl.where(alive, dh, 0.0), tl.where(alive, dc, 0.0)

    # The step again, and back through it.
    z = tl.load(zs + at * L + l)
    y = z * 0.0 + 1.0 if l == 0 else tl.load(out_z + at * L + (l - 1))
    h, c = tl.load(hs + at * H + j, units, 0.0), tl.load(cs + at * H + j, units, 0.0)
    f, i, o, g = four(s + at * (4 * H), j, units, H)
    if NORM:
        f_hat, i_hat, o_hat, g_hat, rstd = normalise_four(f, i, o, g, units, H, EPS)
        gain_f, gain_i, gain_o, gain_g = four(gain, j, units, H)
        f, i, o, g = f_hat * gain_f, i_hat * gain_i, o_hat * gain_o, g_hat * gain_g
    b_f, b_i, b_o, b_g = four(b, j, units, H)
    f, i, o, g = activate(f + b_f, i + b_i, o + b_o, g + b_g)
    event, update, copy = choice(z, y)
    squashed = tl.load(cs + now * H + j, units, 0.0)
    if NORM:
        c_hat, rstd_c = normalise(squashed, units, H, EPS)
        gain_of_c = tl.load(gain_c + j, units, 0.0)
        squashed = c_hat * gain_of_c + tl.load(bias_c + j, units, 0.0)
    squashed = tanh(squashed)
    through = dh * (event * o) * (1.0 - squashed * squashed)
    if NORM:
        at_c = row * H + j
        tl.store(sum_bias_c + at_c, tl.load(sum_bias_c + at_c, units, 0.0) + through, units)
        tl.store(sum_gain_c + at_c, tl.load(sum_gain_c + at_c, units, 0.0) + through * c_hat, units)
        through *= gain_of_c
        mean, along = tl.sum(through) / H, tl.sum(through * c_hat) / H
        through = tl.where(units, rstd_c * (through - mean - c_hat * along), 0.0)
    dc += through
    ds_f, ds_i = dc * update * c * f * (1.0 - f), dc * event * g * i * (1.0 - i)
    ds_o, ds_g = dh * event * squashed * o * (1.0 - o), dc * event * i * (1.0 - g * g)
    # by the coefficients flush, update and copy
    by_h, by_ig = tl.sum(dh * (o * squashed)), tl.sum(dc * (i * g))
    by_flush, by_update = by_ig + by_h, tl.sum(dc * (f * c)) + by_ig + by_h
    by_copy = tl.sum(dc * c) + tl.sum(dh * h)
    by_z, by_y = by_flush - y * by_update - (1.0 - y) * by_copy, (1.0 - z) * (by_update - by_copy)
    dh_before, dc_before = copy * dh, (update * f + copy) * dc
    add_four(sum_b + row * (4 * H), j, units, ds_f, ds_i, ds_o, ds_g, H)
    if NORM:
        add_four(sum_gain + row * (4 * H), j, units, ds_f * f_hat, ds_i * i_hat, ds_o * o_hat, ds_g * g_hat, H)
        ds_f, ds_i, ds_o, ds_g = ds_f * gain_f, ds_i * gain_i, ds_o * gain_o, ds_g * gain_g
        mean = sum_four(ds_f, ds_i, ds_o, ds_g) / (4 * H)
        along = sum_four(ds_f * f_hat, ds_i * i_hat, ds_o * o_hat, ds_g * g_hat) / (4 * H)
        ds_f, ds_i = rstd * (ds_f - mean - f_hat * along), rstd * (ds_i - mean - i_hat * along)
        ds_o, ds_g = rstd * (ds_o - mean - o_hat * along), rstd * (ds_g - mean - g_hat * along)
    store_four(ds + at * (4 * H), j, units, ds_f, ds_i, ds_o, ds_g, H)

    if l < L - 1:
        if not GIVEN:
            a = tl.load(slope)
            s_z = tl.load(s_zs + at * L + l)
            by_s_z = dz * (a / 2.0) * tl.where(tl.abs(a * s_z) < 1.0, 1.0, 0.0)
            if HOLD:  # z = (flush + update) * bound(z~)
                by_event = dz * fires(s_z, a, uniforms, at * (L - 1) + l, SAMPLED)
                by_z += by_event * (1.0 - y)
                by_y += by_event * (1.0 - z)
                by_s_z *= event
            if PADDED:
                by_s_z = tl.where(alive, by_s_z, 0.0)
            tl.store(ds_z + at * L + l, by_s_z)
            dh_before += by_s_z * tl.load(U_z + j, units, 0.0)
        if PADDED:
            by_z = tl.where(alive, by_z, dz_state)
        tl.store(dz_carried + row * L + l, by_z)
    if l > 0:
        if PADDED:
            by_y = tl.where(alive, by_y, 0.0)
        tl.store(dz_now + row * L + (l - 1), by_y)
    if PADDED:
        dh_before, dc_before = tl.where(alive, dh_before, dh_stays), tl.where(alive, dc_before, dc_stays)
    tl.store(dh_carried + row * H + j, dh_before, units)
    tl.store(dc_carried + row * H + j, dc_before, units)
