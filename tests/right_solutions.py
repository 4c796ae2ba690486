"""Right solutions of every drill, written in other ways than the drill's own. Helpers, no tests.

Among them are torch's own functions and autograd: what the drill's solution is compared with is not a copy of it.
"""

import math
import statistics

import numpy
import torch
import torch.nn.functional as F
from torch import nn

import normlab
from normlab import across_tokens, backward, placement


def wide(x):
    return x if x.dtype == torch.float64 else x.float()


# --- layer_norm, rms_norm -------------------------------------------------------------------------------------------


def layer_norm_expanded(x, weight, bias, eps):
    v = wide(x)
    scale = weight.to(v) / torch.sqrt(v.var(-1, keepdim=True, unbiased=False) + eps)
    return (v * scale + (bias.to(v) - v.mean(-1, keepdim=True) * scale)).to(x.dtype)


def layer_norm_einsum(x, weight, bias, eps):
    v, d = wide(x), x.shape[-1]
    centered = v - torch.einsum("...i->...", v)[..., None] / d
    variance = torch.einsum("...i,...i->...", centered, centered)[..., None] / d
    return torch.addcmul(bias.to(v), centered * torch.rsqrt(variance + eps), weight.to(v)).to(x.dtype)


def layer_norm_float32(x, weight, bias, eps):
    v = x.float()
    var, mean = torch.var_mean(v, dim=-1, keepdim=True, correction=0)
    return ((v - mean) * (var + eps).pow(-0.5) * weight.float() + bias.float()).to(x.dtype)


def layer_norm_loop(x, weight, bias, eps):
    rows = []
    for row in wide(x).reshape(-1, x.shape[-1]):
        mean = row.sum() / len(row)
        rows.append((row - mean) / (((row - mean) ** 2).sum() / len(row) + eps) ** 0.5)
    return (torch.stack(rows) * weight + bias).view_as(x).to(x.dtype)


def layer_norm_group(x, weight, bias, eps):
    flat = wide(x).reshape(-1, x.shape[-1])
    return (F.group_norm(flat, 1, eps=eps).view_as(x) * weight + bias).to(x.dtype)


def layer_norm_module(x, weight, bias, eps):
    layer = nn.LayerNorm(x.shape[-1], eps=eps).to(x.dtype)
    return torch.func.functional_call(layer, {"weight": weight, "bias": bias}, (x,))


def rms_norm_length(x, weight, eps):
    v = wide(x)
    length = torch.linalg.vector_norm(v, dim=-1, keepdim=True)
    return (v / torch.sqrt(length**2 / v.shape[-1] + eps)).to(x.dtype) * weight


def rms_norm_float32(x, weight, eps):
    v = x.float()
    return weight * (v * torch.rsqrt(v.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype)


def rms_norm_einsum(x, weight, eps):
    v = wide(x)
    rate = 1 / (torch.einsum("...i,...i->...", v, v) / v.shape[-1] + eps).sqrt()
    return (torch.einsum("...i,...->...i", v, rate)).to(x.dtype) * weight


def rms_norm_gain_first(x, weight, eps):
    v = wide(x)
    return (v * weight.to(v) / (v.square().mean(dim=-1, keepdim=True) + eps).sqrt()).to(x.dtype)


def rms_norm_unsqueezed(x, weight, eps):
    v = wide(x)
    mean_square = (v * v).sum(-1).div(v.size(-1)).unsqueeze(-1)
    return v.div((mean_square + eps).sqrt()).type_as(x).mul(weight)


# --- backward passes: autograd, and formulas of another form --------------------------------------------------------


def by_autograd(forward, *shifts):
    def f(dy, x, weight, eps):
        leaves = [x.clone().requires_grad_(), weight.clone().requires_grad_()]
        leaves += [torch.zeros_like(weight).requires_grad_() for _ in shifts]
        return torch.autograd.grad(forward(*leaves, eps), leaves, dy)

    return f


def rms_backward_rows(dy, x, weight, eps):
    d, dx = x.shape[-1], torch.empty_like(x)
    r = (x.pow(2).mean(-1, keepdim=True) + eps).pow(-0.5)
    for i in range(d):
        dx[..., i] = r[..., 0] * dy[..., i] * weight[i] - x[..., i] * r[..., 0] ** 3 / d * (dy * weight * x).sum(-1)
    return dx, torch.einsum("...d,...d->d", dy, x * r)


def rms_backward_jacobian(dy, x, weight, eps):
    dx = []
    for row, up in zip(x.reshape(-1, x.shape[-1]), dy.reshape(-1, x.shape[-1])):
        r = (row @ row / len(row) + eps) ** -0.5
        dx.append((torch.eye(len(row)).to(row) * r - torch.outer(row, row) * r**3 / len(row)) @ (up * weight))
    r = torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    return torch.stack(dx).view_as(x), (dy * x * r).sum(tuple(range(x.dim() - 1)))


def rms_backward_float32(dy, x, weight, eps):
    g, v, w = dy.float(), x.float(), weight.float()
    r = torch.rsqrt(v.square().mean(-1, keepdim=True) + eps)
    n = v * r
    dx = (g * w - n * (g * w * n).mean(-1, keepdim=True)) * r
    return dx.to(x.dtype), (g * n).reshape(-1, x.shape[-1]).sum(0).to(x.dtype)


def layer_backward_three_paths(dy, x, weight, eps):
    d = x.shape[-1]
    mean, std = x.mean(-1, keepdim=True), (x.var(-1, keepdim=True, correction=0) + eps).sqrt()
    up = dy * weight
    dvar = (up * (x - mean)).sum(-1, keepdim=True) * -0.5 * std**-3
    dmean = (-up / std).sum(-1, keepdim=True) + dvar * (-2 * (x - mean)).mean(-1, keepdim=True)
    dx = up / std + dvar * 2 * (x - mean) / d + dmean / d
    axes = tuple(range(x.dim() - 1))
    return dx, (dy * (x - mean) / std).sum(axes), dy.sum(axes)


def layer_backward_sums(dy, x, weight, eps):
    d = x.shape[-1]
    r = torch.rsqrt(x.var(-1, keepdim=True, unbiased=False) + eps)
    n, up = (x - x.mean(-1, keepdim=True)) * r, dy * weight
    dx = r / d * (d * up - up.sum(-1, keepdim=True) - n * (up * n).sum(-1, keepdim=True))
    return dx, torch.einsum("...d,...d->d", dy, n), torch.einsum("...d->d", dy)


def layer_backward_native(dy, x, weight, eps):
    _, mean, rstd = torch.ops.aten.native_layer_norm(x, [x.shape[-1]], weight, torch.zeros_like(weight), eps)
    return torch.ops.aten.native_layer_norm_backward(
        dy, x, [x.shape[-1]], mean, rstd, weight, torch.zeros_like(weight), [True, True, True]
    )


def layer_backward_float32(dy, x, weight, eps):
    return tuple(t.to(x.dtype) for t in layer_backward_sums(dy.float(), x.float(), weight.float(), eps))


# --- batch norms ----------------------------------------------------------------------------------------------------


def masked_by_selection(x, mask, weight, bias, eps):
    y = torch.zeros_like(x)
    y[mask] = F.batch_norm(x[mask], None, None, weight, bias, True, 0.0, eps)
    return y


def masked_by_var(x, mask, weight, bias, eps):
    rows = x[mask]
    y = (x - rows.mean(0)) * torch.rsqrt(rows.var(0, correction=0) + eps) * weight + bias
    return y.masked_fill(~mask[..., None], 0)


def masked_by_loop(x, mask, weight, bias, eps):
    y = torch.zeros_like(x)
    for j in range(x.shape[-1]):
        values = x[..., j][mask]
        mean = sum(values) / len(values)
        var = sum((v - mean) ** 2 for v in values) / len(values)
        y[..., j][mask] = (values - mean) / (var + eps) ** 0.5 * weight[j] + bias[j]
    return y


def masked_by_moments(x, mask, weight, bias, eps):
    m = mask[..., None].double()
    n = m.sum()
    mean = (x * m).sum((0, 1)) / n
    var = (m * (x - mean) ** 2).sum((0, 1)) / n
    return (torch.where(mask[..., None], (x - mean) / (var + eps).sqrt() * weight + bias, 0)).to(x.dtype)


def masked_by_normlab(x, mask, weight, bias, eps):
    return across_tokens.batch_norm(x, weight, bias, eps=eps, mask=mask)


def masked_float32(x, mask, weight, bias, eps):
    return masked_by_var(x.float(), mask, weight.float(), bias.float(), eps).to(x.dtype)


def running_by_torch(batches, x, momentum, eps):
    layer = nn.BatchNorm1d(x.shape[1], eps=eps, momentum=momentum, affine=False).double()
    outputs = [layer(batch) for batch in batches]
    return outputs, layer.running_mean.clone(), layer.running_var.clone(), layer.eval()(x)


def running_by_function(batches, x, momentum, eps):
    mean, var = torch.zeros(x.shape[1]).double(), torch.ones(x.shape[1]).double()
    outputs = tuple(F.batch_norm(b, mean, var, None, None, True, momentum, eps) for b in batches)
    return outputs, mean, var, F.batch_norm(x, mean, var, None, None, False, momentum, eps)


def running_by_lerp(batches, x, momentum, eps):
    mean, var, outputs = x.new_zeros(x.shape[1]), x.new_ones(x.shape[1]), []
    for b in batches:
        n, m = len(b), b.sum(0) / len(b)
        v = ((b - m) ** 2).sum(0)
        outputs.append((b - m) * (v / n + eps).rsqrt())
        mean, var = torch.lerp(mean, m, momentum), torch.lerp(var, v / (n - 1), momentum)
    return outputs, mean, var, (x - mean) * (var + eps).rsqrt()


def running_by_increment(batches, x, momentum, eps):
    mean, var, outputs = torch.zeros_like(x[0]), torch.ones_like(x[0]), []
    for b in batches:
        v, m = torch.var_mean(b, 0, correction=0)
        outputs.append((b - m) / (v + eps) ** 0.5)
        mean += momentum * (m - mean)
        var += momentum * (v * len(b) / (len(b) - 1) - var)
    return outputs, mean, var, (x - mean) / (var + eps) ** 0.5


def running_in_numpy_terms(batches, x, momentum, eps):
    mean, var, outputs = numpy.zeros(x.shape[1]), numpy.ones(x.shape[1]), []
    for b in (b.numpy() for b in batches):
        outputs.append(torch.from_numpy((b - b.mean(0)) / numpy.sqrt(b.var(0) + eps)))
        mean = (1 - momentum) * mean + momentum * b.mean(0)
        var = (1 - momentum) * var + momentum * b.var(0, ddof=1)
    y = (x.numpy() - mean) / numpy.sqrt(var + eps)
    return outputs, torch.from_numpy(mean), torch.from_numpy(var), torch.from_numpy(y)


# --- streams --------------------------------------------------------------------------------------------------------


def welford_by_merge(stream):
    n, mean, m2 = 0, 0.0, 0.0
    for value in stream:
        delta = value - mean
        m2 += delta * delta * n / (n + 1)
        n += 1
        mean += delta / n
    return mean, m2 / n


def welford_of_variance(stream):
    mean = variance = 0.0
    for n, value in enumerate(stream, 1):
        old = mean
        mean = old + (value - old) / n
        variance += ((value - old) * (value - mean) - variance) / n
    return mean, variance


def welford_shifted(stream):
    stream = iter(stream)
    first = next(stream)
    n, s, q = 1, 0.0, 0.0
    for value in stream:
        n, s, q = n + 1, s + (value - first), q + (value - first) ** 2
    return first + s / n, q / n - (s / n) ** 2


def welford_stored(stream):
    values = list(stream)
    return statistics.fmean(values), statistics.pvariance(values)


def welford_tensor(stream):
    values = torch.tensor(list(stream), dtype=torch.float64)
    return values.mean(), values.var(correction=0)


def welford_numpy(stream):
    values = numpy.fromiter(stream, float)
    return values.mean(), values.var()


def merge_by_moments(a, b):
    n = a[0] + b[0]
    if not n:
        return (0, 0.0, 0.0)
    mean = (a[0] * a[1] + b[0] * b[1]) / n
    return n, mean, a[2] + b[2] + a[0] * (a[1] - mean) ** 2 + b[0] * (b[1] - mean) ** 2


def merge_from_b(a, b):
    n, delta = a[0] + b[0], a[1] - b[1]
    share = a[0] / n if n else 0.0
    return n, b[1] + delta * share, a[2] + b[2] + delta**2 * share * b[0]


def merge_guarded(a, b):
    if a[0] == 0:
        return b
    if b[0] == 0:
        return a
    (na, ma, sa), (nb, mb, sb) = a, b
    return na + nb, (na * ma + nb * mb) / (na + nb), sa + sb + (mb - ma) ** 2 / (1 / na + 1 / nb)


def merge_through_squares(a, b):
    n = a[0] + b[0]
    if n == 0:
        return 0, 0, 0
    total = a[0] * a[1] + b[0] * b[1]
    squares = sum(m2 + n_ * mean**2 for n_, mean, m2 in (a, b))
    return n, total / n, squares - total**2 / n


def merge_by_points(a, b):
    """Two points a chunk that have its mean and, weighted, its sum of squares."""
    points = []
    for n, mean, m2 in (a, b):
        if n:
            half = math.sqrt(m2 / n)
            points += [(n / 2, mean - half), (n / 2, mean + half)]
    n = sum(w for w, _ in points)
    mean = sum(w * p for w, p in points) / n if n else 0.0
    return [a[0] + b[0], mean, sum(w * (p - mean) ** 2 for w, p in points) + 0.0]


# --- blocks ---------------------------------------------------------------------------------------------------------


def add_rms_by_torch(x, residual, weight, eps):
    total = residual + x
    return F.rms_norm(total, (x.shape[-1],), weight, eps), total


def add_rms_registers(x, residual, weight, eps):
    total = wide(x) + wide(residual)
    normed = (total * torch.rsqrt(total.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype) * weight
    return normed, total.to(x.dtype)


def add_rms_by(norm):
    def f(x, residual, weight, eps):
        total = torch.add(x, residual)
        return norm(total, weight, eps), total

    return f


def pre_by_list(x, attention, mlp, norm1, norm2):
    for sublayer, norm in ((attention, norm1), (mlp, norm2)):
        x = x + sublayer(norm(x))
    return x


def pre_in_one_line(x, attention, mlp, norm1, norm2):
    return (h := torch.add(attention(norm1(x)), x)) + mlp(norm2(h))


def pre_of_placement(x, attention, mlp, norm1, norm2):
    return placement.pre(placement.pre(x, attention, norm1), mlp, norm2)


def pre_with_clone(x, attention, mlp, norm1, norm2):
    stream = x.clone()
    stream = stream.add(attention(norm1(stream)))
    return stream.add(mlp(norm2(stream)))


class PreBlock:
    def __call__(self, x, attention, mlp, norm1, norm2):
        increments = [attention(norm1(x))]
        increments.append(mlp(norm2(x + increments[0])))
        return x + increments[0] + increments[1]


def post_by_list(x, attention, mlp, norm1, norm2):
    for sublayer, norm in ((attention, norm1), (mlp, norm2)):
        x = norm(x + sublayer(x))
    return x


def post_in_one_line(x, attention, mlp, norm1, norm2):
    return norm2((h := norm1(attention(x) + x)) + mlp(h))


def post_of_placement(x, attention, mlp, norm1, norm2):
    return placement.post(placement.post(x, attention, norm1), mlp, norm2)


def post_with_clone(x, attention, mlp, norm1, norm2):
    stream = x.clone()
    stream = norm1(stream.add(attention(stream)))
    return norm2(torch.stack([stream, mlp(stream)]).sum(0))


def post_inner(x, attention, mlp, norm1, norm2):
    def step(x, sublayer, norm):
        return norm(sublayer(x) + x)

    return step(step(x, attention, norm1), mlp, norm2)


def peri_by_list(x, attention, mlp, norm1, norm2, out1, out2):
    for sublayer, norm, out in ((attention, norm1, out1), (mlp, norm2, out2)):
        x = x + out(sublayer(norm(x)))
    return x


def peri_in_one_line(x, attention, mlp, norm1, norm2, out1, out2):
    return (h := out1(attention(norm1(x))) + x) + out2(mlp(norm2(h)))


def peri_of_placement(x, attention, mlp, norm1, norm2, out1, out2):
    return placement.peri(placement.peri(x, attention, norm1, out1), mlp, norm2, out2)


def peri_of_pre(x, attention, mlp, norm1, norm2, out1, out2):
    return pre_by_list(x, lambda h: out1(attention(h)), lambda h: out2(mlp(h)), norm1, norm2)


def peri_with_clone(x, attention, mlp, norm1, norm2, out1, out2):
    stream = x.clone()
    stream = stream.add(out1(attention(norm1(stream))))
    return stream.add(out2(mlp(norm2(stream))))


def deepnorm_by_normlab(x, sublayer, norm, layers):
    alpha, beta = placement.deepnorm_single(layers)
    return alpha, beta, placement.deepnorm(x, sublayer, norm, alpha)


def deepnorm_by_roots(x, sublayer, norm, layers):
    alpha, beta = math.sqrt(math.sqrt(2 * layers)), 1 / math.sqrt(math.sqrt(8 * layers))
    return alpha, beta, norm(sublayer(x) + x * alpha)


def deepnorm_by_logarithm(x, sublayer, norm, layers):
    alpha, beta = math.exp(math.log(2 * layers) / 4), math.exp(-math.log(8 * layers) / 4)
    return [alpha, beta, norm(torch.add(sublayer(x), x, alpha=alpha))]


def deepnorm_by_tensors(x, sublayer, norm, layers):
    m = torch.tensor(float(layers), dtype=torch.float64)
    alpha, beta = (2 * m).pow(0.25), (8 * m).pow(-0.25)
    return alpha, beta, norm((alpha * x + sublayer(x)).to(x.dtype))


def deepnorm_by_each_other(x, sublayer, norm, layers):
    alpha = (2 * layers) ** (1 / 4)
    return alpha, 1 / (alpha * math.sqrt(2)), norm(alpha * x + sublayer(x))


# --- attention and head ---------------------------------------------------------------------------------------------


def qk_by_torch(q, k, v, q_weight, k_weight, rope, eps):
    q, k = (rope(F.rms_norm(t, t.shape[-1:], w, eps)) for t, w in ((q, q_weight), (k, k_weight)))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def qk_by_einsum(q, k, v, q_weight, k_weight, rope, eps):
    q, k = rope(rms_norm_length(q, q_weight, eps)), rope(rms_norm_length(k, k_weight, eps))
    scores = torch.einsum("bhqd,bhkd->bhqk", q, k) / math.sqrt(q.shape[-1])
    later = torch.triu(torch.full(scores.shape[-2:], float("-inf"), dtype=scores.dtype), 1)
    return torch.einsum("bhqk,bhkd->bhqd", F.softmax(scores + later, -1), v)


def qk_by_rows(q, k, v, q_weight, k_weight, rope, eps):
    q, k = rope(rms_norm_einsum(q, q_weight, eps)), rope(rms_norm_einsum(k, k_weight, eps))
    rows = []
    for t in range(q.shape[-2]):
        scores = (q[..., t : t + 1, :] * q.shape[-1] ** -0.5) @ k[..., : t + 1, :].mT
        rows.append(scores.softmax(-1) @ v[..., : t + 1, :])
    return torch.cat(rows, -2)


def qk_by_exp(q, k, v, q_weight, k_weight, rope, eps):
    q, k = rope(rms_norm_unsqueezed(q, q_weight, eps)), rope(rms_norm_unsqueezed(k, k_weight, eps))
    weights = torch.exp((q @ k.mT) / q.shape[-1] ** 0.5).tril()
    return weights / weights.sum(-1, keepdim=True) @ v


def qk_scaled_apart(q, k, v, q_weight, k_weight, rope, eps):
    root = q.shape[-1] ** 0.25
    q, k = rope(rms_norm_length(q, q_weight, eps)) / root, rope(rms_norm_length(k, k_weight, eps)) / root
    scores = (q @ k.mT).masked_fill(torch.ones(q.shape[-2], q.shape[-2]).triu(1).bool(), torch.finfo(q.dtype).min)
    return scores.softmax(-1) @ v


def qk_float32(*arguments):
    *tensors, rope, eps = arguments
    return qk_by_einsum(*(t.float() for t in tensors), rope, eps).to(arguments[0].dtype)


def head_by_torch(hidden, weight, embedding, eps):
    return F.linear(F.rms_norm(hidden, hidden.shape[-1:], weight, eps)[:, -1, :], embedding)


def head_all_positions(hidden, weight, embedding, eps):
    return (rms_norm_length(hidden, weight, eps) @ embedding.mT)[:, -1]


def head_einsum(hidden, weight, embedding, eps):
    return torch.einsum("bd,vd->bv", rms_norm_length(hidden[:, -1], weight, eps), embedding)


def head_folded(hidden, weight, embedding, eps):
    last = hidden.select(1, -1)
    return (last @ (embedding * weight).T) / (last.square().mean(-1, keepdim=True) + eps).sqrt()


def head_float32(hidden, weight, embedding, eps):
    return head_by_torch(hidden.float(), weight.float(), embedding.float(), eps).to(hidden.dtype)


def fold_by_diagonal(gain, shift, W, b):
    return W @ torch.diag(gain), F.linear(shift, W, b)


def fold_by_probing(gain, shift, W, b):
    def f(scores):
        return F.linear(gain * scores + shift, W, b)

    offset = f(torch.zeros_like(gain))
    return torch.stack([f(unit) - offset for unit in torch.eye(len(gain)).to(gain)], 1), offset


def fold_by_einsum(gain, shift, W, b):
    return torch.einsum("oi,i->oi", W, gain), torch.einsum("oi,i->o", W, shift).add(b)


def fold_by_rows(gain, shift, W, b):
    return torch.stack([row * gain for row in W]), torch.stack([row @ shift for row in W]) + b


def fold_by_transpose(gain, shift, W, b):
    return (W.T * gain[:, None]).T, torch.mv(W, shift) + b


def fold_float32(gain, shift, W, b):
    return W * gain[None, :], torch.addmv(b, W, shift)


# --- plain Python ---------------------------------------------------------------------------------------------------


def groups_by_modules(model):
    decay, no_decay, seen = [], [], set()
    for prefix, module in model.named_modules():
        for name, p in module.named_parameters(prefix, recurse=False):
            if id(p) in seen or not p.requires_grad:
                continue
            seen.add(id(p))
            keep = p.ndim < 2 or type(module).__name__.lower().endswith("norm")
            (no_decay if keep else decay).append(name)
    return decay, no_decay


def groups_as_sets(model):
    norms = {
        f"{prefix}.{name}" if prefix else name
        for prefix, module in model.named_modules()
        if "norm" in module.__class__.__name__.casefold()
        for name, _ in module.named_parameters(recurse=False)
    }
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    decay = {name for name, p in trained.items() if len(p.shape) >= 2 and name not in norms}
    return decay, set(trained) - decay


def groups_by_loop(model):
    groups = [], []
    owners = {}
    for module in model.modules():
        for p in module.parameters(recurse=False):
            owners.setdefault(p, module)
    for name, p in model.named_parameters():
        if p.requires_grad:
            groups[int(p.dim() <= 1 or "Norm" in type(owners[p]).__name__)].append(name)
    return groups


def groups_reversed(model):
    decay, no_decay = groups_by_modules(model)
    return decay[::-1], no_decay[::-1]


def groups_as_generators(model):
    return tuple((name for name in group) for group in groups_by_loop(model))


def cache_by_tensors(config, tokens, batch, bytes_per_number):
    shape = batch, config["kv_heads"], tokens, config["head_dim"]
    one = torch.empty(shape, dtype={1: torch.int8, 2: torch.float16}[bytes_per_number], device="meta")
    return sum(2 * one.numel() * one.element_size() for _ in range(config["layers"]))


def ledger_by_layers(kind, width, layers, norms_per_layer, final, tokens, bytes_per_number):
    kinds = {"layernorm": nn.LayerNorm, "rmsnorm": nn.RMSNorm}
    norms = [kinds[kind](width, device="meta") for _ in range(layers * norms_per_layer + int(final))]
    parameters = sum(p.numel() for norm in norms for p in norm.parameters())
    return len(norms), parameters, sum(2 * tokens * width * bytes_per_number for _ in norms)


def gradient_by_rows(f, x, h):
    x = x.to(torch.float64)
    steps = h * torch.eye(x.numel(), dtype=torch.float64).view(-1, *x.shape)
    return torch.stack([f(x + s) - f(x - s) for s in steps]).view(x.shape) / (2 * h)


def gradient_in_place(f, x, h):
    point, found = x.double().clone(), []
    flat = point.view(-1)
    for i in range(len(flat)):
        old = flat[i].item()
        flat[i] = old + h
        up = f(point).item()
        flat[i] = old - h
        down = f(point).item()
        flat[i] = old
        found.append((up - down) / h / 2)
    return torch.tensor(found, dtype=torch.float64).reshape(x.shape)


def gradient_by_index(f, x, h):
    x = x.detach().double()
    g = torch.empty_like(x)
    for index in numpy.ndindex(*x.shape):
        up, down = x.clone(), x.clone()
        up[index] += h
        down[index] -= h
        g[index] = 0.5 * (f(up) - f(down)) / h
    return g


def gradient_by_vmap(f, x, h):
    x = x.double()
    steps = h * torch.eye(x.numel(), dtype=x.dtype).view(-1, *x.shape)
    differ = torch.func.vmap(lambda s: f(x + s) - f(x - s))
    return differ(steps).view_as(x) / (2 * h)


def gradient_by_numpy(f, x, h):
    x = x.double().numpy()
    g = numpy.zeros_like(x)
    for i in range(x.size):
        step = numpy.zeros(x.size)
        step[i] = h
        step = step.reshape(x.shape)
        g.flat[i] = (f(torch.from_numpy(x + step)) - f(torch.from_numpy(x - step))) / (2 * h)
    return torch.from_numpy(g)


# --- the rest -------------------------------------------------------------------------------------------------------


def sharded_by_gathering(shards, weights, eps):
    whole, gain = torch.cat(shards, -1), torch.cat(weights)
    return list(F.rms_norm(whole, whole.shape[-1:], gain, eps).split([s.shape[-1] for s in shards], -1))


def sharded_by_weights(shards, weights, eps):
    total = sum(s.shape[-1] for s in shards)
    mean_square = sum(s.pow(2).mean(-1, keepdim=True) * (s.shape[-1] / total) for s in shards)
    return tuple(s / (mean_square + eps).sqrt() * w for s, w in zip(shards, weights))


def sharded_by_lengths(shards, weights, eps):
    lengths = torch.stack([torch.linalg.vector_norm(s, dim=-1) for s in shards])
    square = torch.linalg.vector_norm(lengths, dim=0)[..., None] ** 2 / sum(len(w) for w in weights)
    return [w * (s * torch.rsqrt(square + eps)) for s, w in zip(shards, weights)]


def sharded_by_einsum(shards, weights, eps):
    n = sum(w.numel() for w in weights)
    square = sum(torch.einsum("...i,...i->...", s, s) for s in shards)
    return [torch.einsum("...i,i,...->...i", s, w, (square / n + eps) ** -0.5) for s, w in zip(shards, weights)]


def sharded_float32(shards, weights, eps):
    found = sharded_by_weights([s.float() for s in shards], [w.float() for w in weights], eps)
    return [y.double() for y in found]


class OwnRMSNorm(nn.Module):
    def __init__(self, width, eps=1e-6):
        super().__init__()
        self.g = nn.Parameter(torch.full((width,), 1.0))
        self.epsilon = eps

    def forward(self, x):
        v = wide(x)
        return self.g * (v / (v.pow(2).mean(-1, keepdim=True) + self.epsilon).sqrt()).to(x.dtype)


class ByTorch(nn.Module):
    def __init__(self, width, eps=1e-6):
        super().__init__()
        self.norm = nn.RMSNorm(width, eps=eps)

    def forward(self, x):
        return self.norm(x)


class ByFunction(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.dim, self.eps, self.scale = dim, eps, nn.Parameter(torch.empty(dim))
        nn.init.ones_(self.scale)

    def forward(self, hidden):
        return F.rms_norm(hidden, (self.dim,), self.scale, self.eps)


class ByLength(OwnRMSNorm):
    def forward(self, x):
        return rms_norm_length(x, self.g, self.epsilon)


RIGHT = {
    "layer_norm": [
        lambda x, w, b, eps: F.layer_norm(x, x.shape[-1:], w, b, eps),
        lambda x, w, b, eps: normlab.layer_norm(x, w, b, eps),
        layer_norm_expanded,
        layer_norm_einsum,
        layer_norm_float32,
        layer_norm_loop,
        layer_norm_group,
        layer_norm_module,
    ],
    "rms_norm": [
        lambda x, w, eps: F.rms_norm(x, x.shape[-1:], w, eps),
        lambda x, w, eps: normlab.rms_norm(x, w, eps),
        lambda x, w, eps: normlab.rms_norm(x, w, eps, convention="llama"),
        rms_norm_length,
        rms_norm_float32,
        rms_norm_einsum,
        rms_norm_gain_first,
        rms_norm_unsqueezed,
    ],
    "rms_norm_backward": [
        by_autograd(lambda x, w, eps: F.rms_norm(x, x.shape[-1:], w, eps)),
        backward.rms_norm_backward,
        rms_backward_rows,
        rms_backward_jacobian,
        rms_backward_float32,
    ],
    "layer_norm_backward": [
        by_autograd(lambda x, w, b, eps: F.layer_norm(x, x.shape[-1:], w, b, eps), "bias"),
        backward.layer_norm_backward,
        layer_backward_three_paths,
        layer_backward_sums,
        layer_backward_native,
        layer_backward_float32,
    ],
    "masked_batch_norm": [
        masked_by_selection,
        masked_by_var,
        masked_by_loop,
        masked_by_moments,
        masked_by_normlab,
        masked_float32,
    ],
    "batch_norm_running_stats": [
        running_by_torch,
        running_by_function,
        running_by_lerp,
        running_by_increment,
        running_in_numpy_terms,
    ],
    "welford": [
        welford_by_merge,
        welford_of_variance,
        welford_shifted,
        welford_stored,
        welford_tensor,
        welford_numpy,
    ],
    "chunk_merge": [merge_by_moments, merge_from_b, merge_guarded, merge_through_squares, merge_by_points],
    "add_rms_norm": [
        add_rms_by_torch,
        add_rms_registers,
        add_rms_by(rms_norm_length),
        add_rms_by(rms_norm_float32),
        add_rms_by(rms_norm_gain_first),
    ],
    "pre_norm_block": [pre_by_list, pre_in_one_line, pre_of_placement, pre_with_clone, PreBlock()],
    "post_norm_block": [post_by_list, post_in_one_line, post_of_placement, post_with_clone, post_inner],
    "peri_norm_block": [peri_by_list, peri_in_one_line, peri_of_placement, peri_of_pre, peri_with_clone],
    "deepnorm": [
        deepnorm_by_normlab,
        deepnorm_by_roots,
        deepnorm_by_logarithm,
        deepnorm_by_tensors,
        deepnorm_by_each_other,
    ],
    "qk_norm_attention": [qk_by_torch, qk_by_einsum, qk_by_rows, qk_by_exp, qk_scaled_apart, qk_float32],
    "final_norm_head": [head_by_torch, head_all_positions, head_einsum, head_folded, head_float32],
    "fold_norm": [fold_by_diagonal, fold_by_probing, fold_by_einsum, fold_by_rows, fold_by_transpose, fold_float32],
    "weight_decay_groups": [
        groups_by_modules,
        groups_as_sets,
        groups_by_loop,
        groups_reversed,
        groups_as_generators,
    ],
    "kv_cache_bytes": [
        cache_by_tensors,
        lambda c, t, b, n: 2 * math.prod((c["layers"], c["kv_heads"], c["head_dim"], t, b, n)),
        lambda c, t, b, n: sum(c["kv_heads"] * c["head_dim"] * n * t * b for _ in "kv") * c["layers"],
        lambda c, t, b, n: float(c["layers"] * c["kv_heads"] * c["head_dim"] * 2) * n * t * b,
        lambda c, t, b, n: b * t * 2 * c["layers"] * (c["heads"] * c["head_dim"]) * n // (c["heads"] // c["kv_heads"]),
    ],
    "gradient_check": [
        gradient_by_rows,
        gradient_in_place,
        gradient_by_index,
        gradient_by_vmap,
        gradient_by_numpy,
    ],
    "norm_ledger": [
        ledger_by_layers,
        lambda k, d, n, p, f, t, b: (
            n * p + bool(f),
            (n * p + f) * d * (1 + (k[0] == "l")),
            (n * p + f) * t * d * b * 2,
        ),
        lambda k, d, n, p, f, t, b: tuple((n * p + f) * v for v in (1, d * {"l": 2, "r": 1}[k[0]], 2 * d * t * b)),
        lambda k, d, n, p, f, t, b: [int(v) for v in ledger_by_layers(k, d, n, p, f, t, b)],
        lambda *a: tuple(float(v) for v in ledger_by_layers(*a)),
    ],
    "dyt": [
        lambda x, a, w, b: normlab.functional.dyt(x, w, b, a),
        lambda x, a, w, b: torch.addcmul(b, (x * a).tanh(), w),
        lambda x, a, w, b: (2 * torch.sigmoid(2 * a * x) - 1) * w + b,
        lambda x, a, w, b: b + w * torch.tanh(x.mul(a)),
        lambda x, a, w, b: w * (x * a).sign() * -torch.expm1(-2 * (x * a).abs()) / (1 + (-2 * (x * a).abs()).exp()) + b,
        lambda x, a, w, b: ((x.float() * a.float()).tanh() * w.float() + b.float()).to(x.dtype),
    ],
    "sharded_rms_norm": [
        sharded_by_gathering,
        sharded_by_weights,
        sharded_by_lengths,
        sharded_by_einsum,
        sharded_float32,
    ],
    "rms_norm_module": [
        OwnRMSNorm,
        ByTorch,
        ByFunction,
        ByLength,
        lambda width, eps=1e-6: nn.RMSNorm(width, eps=eps),
        lambda width, eps=1e-6: normlab.RMSNorm(width, eps=eps),
    ],
}
