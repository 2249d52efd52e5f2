"""The HM-LSTM once more, from the paper: one example and one step at a time, UPDATE, COPY and FLUSH as branches.

No tensors, no masks, no batch: lists of Python floats. It shares no code with the package.
"""

from __future__ import annotations

import math

EPS = 1e-5


def sigm(v):
    return 1 / (1 + math.exp(-v)) if v >= 0 else math.exp(v) / (1 + math.exp(v))


def hard_sigm(v, a):
    return max(0.0, min(1.0, (a * v + 1) / 2))


def times(matrix, vector):
    return [sum(m * v for m, v in zip(row, vector, strict=True)) for row in matrix]


def plus(*vectors):
    return [sum(parts) for parts in zip(*vectors, strict=True)]


def normalised(vector, gain, bias):
    mean = sum(vector) / len(vector)
    deviation = math.sqrt(sum((v - mean) ** 2 for v in vector) / len(vector) + EPS)
    return [g * (v - mean) / deviation + b for v, g, b in zip(vector, gain, bias, strict=True)]


def run(layers, xs, h, c, z, *, slope, hold=True, uniforms=None, given=None):
    """One example. layers: dicts of nested lists; xs: T inputs; h, c: L vectors; z: L-1 numbers before the first step.

    Returns for each step (h, c, z, names of the operations).
    """
    L = len(layers)
    h, c, z = [list(v) for v in h], [list(v) for v in c], [*z, 0]
    history = []
    for t, x in enumerate(xs):
        h_before, z_before = [list(v) for v in h], list(z)
        operations = []
        for l, w in enumerate(layers):
            below_fires = 1 if l == 0 else z[l - 1]
            below = x if l == 0 else h[l - 1]

            if z_before[l] == 1:
                operation = "FLUSH"
            elif below_fires == 1:
                operation = "UPDATE"
            else:
                operation = "COPY"
            operations.append(operation)

            s = times(w["U"], h_before[l])
            if z_before[l] == 1:
                s = plus(s, times(w["V"], h_before[l + 1]))
            if below_fires == 1:
                s = plus(s, times(w["W"], below))
            s = plus(s, w["b"]) if w["gain"] is None else normalised(s, w["gain"], w["b"])
            H = len(h[l])
            f = [sigm(v) for v in s[:H]]
            i = [sigm(v) for v in s[H : 2 * H]]
            o = [sigm(v) for v in s[2 * H : 3 * H]]
            g = [math.tanh(v) for v in s[3 * H :]]

            if operation == "UPDATE":
                c[l] = [f[k] * c[l][k] + i[k] * g[k] for k in range(H)]
            elif operation == "FLUSH":
                c[l] = [i[k] * g[k] for k in range(H)]
            if operation != "COPY":
                cell = c[l] if w["gain_c"] is None else normalised(c[l], w["gain_c"], w["bias_c"])
                h[l] = [o[k] * math.tanh(cell[k]) for k in range(H)]

            if l < L - 1:
                if given is not None:
                    z[l] = given[t][l]
                elif operation == "COPY" and hold:
                    z[l] = 0
                else:
                    s_z = w["b_z"] + times([w["U_z"]], h_before[l])[0]
                    if z_before[l] == 1:
                        s_z += times([w["V_z"]], h_before[l + 1])[0]
                    if below_fires == 1:
                        s_z += times([w["W_z"]], below)[0]
                    z_tilde = hard_sigm(s_z, slope)
                    threshold = 0.5 if uniforms is None else uniforms[t][l]
                    z[l] = 1 if z_tilde > threshold else 0
        history.append(([list(v) for v in h], [list(v) for v in c], z[: L - 1], operations))
    return history
