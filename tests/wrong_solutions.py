"""Wrong solutions that were written without the catalogue in view, and what the checker says to each. No tests.

An empty text means that nothing in the catalogue explains it: the checker then tells properties only.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn

WRONG = []


def mistaken(slug, ids):
    def keep(solution):
        WRONG.append((slug, tuple(ids.split()), solution))
        return solution

    return keep


@mistaken("layer_norm", "unbiased_var eps_outside")  # torch.std and eps outside
def solution_1(x, weight, bias, eps):
    v = x.float() if x.dtype != torch.float64 else x
    return (weight * (v - v.mean(-1, keepdim=True)) / (v.std(-1, keepdim=True) + eps) + bias).to(x.dtype)


@mistaken("layer_norm", "")  # E[x²] - E[x], the mean not squared
def solution_2(x, weight, bias, eps):
    v = x.float() if x.dtype != torch.float64 else x
    m = v.mean(-1, keepdim=True)
    var = (v**2).mean(-1, keepdim=True) - m
    return ((v - m) / torch.sqrt(var.abs() + eps) * weight + bias).to(x.dtype)


@mistaken("layer_norm", "gemma_gain no_bias")  # gain as outer 1+w and no bias
def solution_3(x, weight, bias, eps):
    v = x.double()
    return (
        (v - v.mean(-1, keepdim=True)) * torch.rsqrt(v.var(-1, keepdim=True, correction=0) + eps) * (1 + weight)
    ).to(x.dtype)


@mistaken("layer_norm", "half_stats")  # float16 statistics
def solution_4(x, weight, bias, eps):
    mu = x.mean(dim=-1, keepdim=True)
    s = ((x - mu) * (x - mu)).mean(dim=-1, keepdim=True)
    return weight * ((x - mu) / torch.sqrt(s + eps)) + bias


@mistaken("rms_norm", "sum_not_mean clamp_eps")  # F.normalize instead of rms
def solution_5(x, weight, eps):
    v = x.float() if x.dtype != torch.float64 else x
    return F.normalize(v, dim=-1, eps=eps).to(x.dtype) * weight


@mistaken("rms_norm", "gain_first")  # weight squared by applying gain before and after
def solution_6(x, weight, eps):
    v = (x * weight).float() if x.dtype != torch.float64 else x * weight
    return (v * torch.rsqrt(v.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype)


@mistaken("rms_norm", "raises")  # keepdim forgotten, unsqueeze on wrong side
def solution_7(x, weight, eps):
    v = x.float() if x.dtype != torch.float64 else x
    r = torch.rsqrt(v.pow(2).mean(-1) + eps)
    return (v * r.unsqueeze(0 if x.dim() == 2 else 1)).to(x.dtype) * weight


@mistaken("rms_norm", "eps_twice")  # eps added twice
def solution_8(x, weight, eps):
    v = x.float() if x.dtype != torch.float64 else x
    r = torch.sqrt(v.pow(2).mean(-1, keepdim=True) + eps)
    return (v / (r + eps)).to(x.dtype) * weight


@mistaken("rms_norm_backward", "no_gain dw_mean")  # forgets weight in dx and averages dw
def solution_9(dy, x, weight, eps):
    r = (x.pow(2).mean(-1, keepdim=True) + eps).rsqrt()
    n = x * r
    dx = r * (dy - n * (dy * n).mean(-1, keepdim=True))
    return dx, (dy * n).reshape(-1, x.shape[-1]).mean(0)


@mistaken("rms_norm_backward", "mean_twice")  # projection divided by d twice
def solution_10(dy, x, weight, eps):
    d = x.shape[-1]
    r = (x.pow(2).mean(-1, keepdim=True) + eps).rsqrt()
    n = x * r
    g = dy * weight
    return r * (g - n * (g * n).mean(-1, keepdim=True) / d), (dy * n).reshape(-1, d).sum(0)


@mistaken("layer_norm_backward", "no_mean_term")  # the mean treated as a constant
def solution_11(dy, x, weight, eps):
    m = x.mean(-1, keepdim=True)
    r = (x.var(-1, keepdim=True, correction=0) + eps).rsqrt()
    n = (x - m) * r
    g = dy * weight
    dx = r * g - n * r * (g * n).mean(-1, keepdim=True)

    def f(t):
        return t.reshape(-1, x.shape[-1]).sum(0)

    return dx, f(dy * n), f(dy)


@mistaken("masked_batch_norm", "var_of_zeroed")  # variance over zeroed padding
def solution_12(x, mask, weight, bias, eps):
    m = x[mask].mean(0)
    z = torch.where(mask[..., None], x, torch.zeros_like(x))
    var = ((z - m) ** 2).sum((0, 1)) / mask.sum()
    return torch.where(mask[..., None], (x - m) / torch.sqrt(var + eps) * weight + bias, torch.zeros_like(x))


@mistaken("welford", "unbiased_guarded")  # divides by n - 1
def solution_13(stream):
    n = 0
    mean = 0.0
    M2 = 0.0
    for v in stream:
        n += 1
        d = v - mean
        mean += d / n
        M2 += d * (v - mean)
    return mean, M2 / (n - 1) if n > 1 else 0.0


@mistaken("add_rms_norm", "modifies_input raises")  # in-place residual.add_(x)
def solution_14(x, residual, weight, eps):
    residual.add_(x)
    return F.rms_norm(residual, (x.shape[-1],), weight, eps), residual


@mistaken("pre_norm_block", "mlp_reads_branch")  # norm2 applied to attention output only, added to x
def solution_15(x, attention, mlp, norm1, norm2):
    a = attention(norm1(x))
    return x + a + mlp(norm2(a))


@mistaken("post_norm_block", "no_skip_mlp shared_norm")  # no second residual, norm1 twice
def solution_16(x, attention, mlp, norm1, norm2):
    x = norm1(x + attention(x))
    return norm1(mlp(x))


@mistaken("qk_norm_attention", "after_rope not_causal")  # normalizes after rope and no causal mask
def solution_17(q, k, v, qw, kw, rope, eps):
    def n(t, w_):
        return t * torch.rsqrt(t.pow(2).mean(-1, keepdim=True) + eps) * w_

    q, k = n(rope(q), qw), n(rope(k), kw)
    return torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]), -1) @ v


@mistaken("fold_norm", "")  # bias uses column sums of W times mean shift
def solution_18(gain, shift, W, b):
    return W * gain, b + W.sum(1) * shift.mean()


@mistaken("kv_cache_bytes", "all_heads no_layers")  # forgets layers and counts query heads
def solution_19(config, tokens, batch, bytes_per_number):
    return 2 * config["heads"] * config["head_dim"] * tokens * batch * bytes_per_number


@mistaken("sharded_rms_norm", "mean_of_means")  # eps inside each rank's mean square, then averaged
def solution_20(shards, weights, eps):
    ms = sum(s.pow(2).mean(-1, keepdim=True) + eps for s in shards) / len(shards)
    return [s / ms.sqrt() * g for s, g in zip(shards, weights)]


@mistaken("rms_norm_module", "")  # gain starts at 0.02, eps outside
class rms_norm_module(nn.Module):
    def __init__(self, width, eps=1e-6):
        super().__init__()
        self.w = nn.Parameter(0.02 * torch.ones(width))
        self.eps = eps

    def forward(self, x):
        return self.w * x / (x.norm(dim=-1, keepdim=True) * x.shape[-1] ** -0.5 + self.eps)


@mistaken("gradient_check", "modifies_input")  # an alias of x that is moved in place
def solution_21(f, x, h):
    x = x.double()
    g = torch.zeros_like(x)
    for i in range(x.numel()):
        y = x
        y.view(-1)[i] += h
        g.view(-1)[i] = (f(y) - f(x)) / h
    return g
