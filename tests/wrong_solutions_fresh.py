"""Twenty wrong solutions, written from the tasks alone, before their author had seen any catalogue. No tests.

At first the checker gave 17 of them the right name. One had only half of its name (one_pass was missing), one got a
wrong name (clamp_eps for an eps of its own), one a wrong second name (unused_gain beside not_registered), and one
a wrong sentence (a wrong number of results where names were missing).
"""

import torch
import torch.nn.functional as F


# rms_norm: F.normalize divides by the length and has an eps of its own; the eps of the task is never used.
def rms_norm_normalize(x, weight, eps):
    return F.normalize(x, dim=-1) * x.shape[-1] ** 0.5 * weight


# rms_norm: the length instead of the root mean square, and eps added to it.
def rms_norm_length(x, weight, eps):
    return x / (x.norm(dim=-1, keepdim=True) + eps) * weight


# layer_norm: torch.std divides by d - 1, and eps is added to it outside of the root.
def layer_norm_std(x, weight, bias, eps):
    return (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + eps) * weight + bias


# layer_norm: E[x²] - E[x]² loses all digits when the mean is large.
def layer_norm_one_pass(x, weight, bias, eps):
    mean = x.mean(-1, keepdim=True)
    variance = (x * x).mean(-1, keepdim=True) - mean * mean
    return (x - mean) / torch.sqrt(variance + eps) * weight + bias


# rms_norm_module: the gain is a plain tensor that no optimizer sees.
class GainIsNoParameter(torch.nn.Module):
    def __init__(self, width, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.weight = torch.ones(width)

    def forward(self, x):
        scale = torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + self.eps)
        return (x.float() * scale).to(x.dtype) * self.weight.to(x.dtype)


# add_rms_norm: hands the normalized sum on as the residual stream.
def add_rms_norm_normed_stream(x, residual, weight, eps):
    total = (x + residual).float()
    normed = total * torch.rsqrt(total.pow(2).mean(-1, keepdim=True) + eps) * weight
    normed = normed.to(x.dtype)
    return normed, normed


# pre_norm_block: the skip starts after the norm.
def pre_norm_block_skip_from_norm(x, attention, mlp, norm1, norm2):
    h = norm1(x)
    x = h + attention(h)
    h = norm2(x)
    return h + mlp(h)


# pre_norm_block: attention and mlp side by side (GPT-J), though the task says one after the other.
def pre_norm_block_parallel(x, attention, mlp, norm1, norm2):
    return x + attention(norm1(x)) + mlp(norm2(x))


# post_norm_block: the norm sits on the branch, before the addition.
def post_norm_block_norm_on_branch(x, attention, mlp, norm1, norm2):
    x = x + norm1(attention(x))
    return x + norm2(mlp(x))


# rms_norm_backward: dweight multiplies dy by x, not by the normalized x.
def rms_norm_backward_raw_x(dy, x, weight, eps):
    r = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)
    xhat = x * r
    g = dy * weight
    dx = r * (g - xhat * (g * xhat).mean(-1, keepdim=True))
    return dx, (dy * x).reshape(-1, x.shape[-1]).sum(0)


# layer_norm_backward: the variance is treated as a constant, only the mean's term is there.
def layer_norm_backward_variance_constant(dy, x, weight, eps):
    mean = x.mean(-1, keepdim=True)
    r = torch.rsqrt(x.var(-1, keepdim=True, unbiased=False) + eps)
    xhat = (x - mean) * r
    g = dy * weight
    dx = r * (g - g.mean(-1, keepdim=True))
    axes = tuple(range(x.ndim - 1))
    return dx, (dy * xhat).sum(axes), dy.sum(axes)


# gradient_check: copies x in its own dtype, so that f runs in float32 and the difference is noise.
def gradient_check_own_dtype(f, x, h):
    grad = torch.zeros(x.shape, dtype=torch.float64)
    for i in range(x.numel()):
        up, down = x.detach().clone(), x.detach().clone()
        up.view(-1)[i] += h
        down.view(-1)[i] -= h
        grad.view(-1)[i] = (f(up) - f(down)).double() / (2 * h)
    return grad


# welford: squares the distance from the old mean.
def welford_old_mean(stream):
    n, mean, m2 = 0, 0.0, 0.0
    for value in stream:
        n += 1
        delta = value - mean
        mean += delta / n
        m2 += delta * delta
    return mean, m2 / n


# chunk_merge: adds the two sums of squares and forgets that the means differ; and 0 / 0 for two empty chunks.
def chunk_merge_no_between(a, b):
    n = a[0] + b[0]
    mean = (a[0] * a[1] + b[0] * b[1]) / n
    return n, mean, a[2] + b[2]


# masked_batch_norm: padding set to zero still lies at a distance of the mean and is summed into the variance.
def masked_batch_norm_padding_in_variance(x, mask, weight, bias, eps):
    m = mask.unsqueeze(-1).to(x.dtype)
    n = m.sum()
    mean = (x * m).sum((0, 1)) / n
    variance = ((x * m - mean) ** 2).sum((0, 1)) / n
    return ((x - mean) / torch.sqrt(variance + eps) * weight + bias) * m


# batch_norm_running_stats: momentum the Keras way round, and the running variance is the biased one.
def batch_norm_keras(batches, x, momentum, eps):
    mean, var, outputs = torch.zeros_like(x[0]), torch.ones_like(x[0]), []
    for batch in batches:
        m, v = batch.mean(0), batch.var(0, unbiased=False)
        outputs.append((batch - m) / torch.sqrt(v + eps))
        mean = momentum * mean + (1 - momentum) * m
        var = momentum * var + (1 - momentum) * v
    return outputs, mean, var, (x - mean) / torch.sqrt(var + eps)


# fold_norm: the shift goes through the matrix that already carries the gain.
def fold_norm_shift_through_folded(gain, shift, W, b):
    W2 = W * gain
    return W2, b + W2 @ shift


# weight_decay_groups: looks for "norm" in the parameter's name, where models say ln_1.
def weight_decay_groups_by_name(model):
    decay, no_decay = [], []
    for name, p in model.named_parameters():
        if p.requires_grad:
            (no_decay if name.endswith("bias") or "norm" in name else decay).append(name)
    return decay, no_decay


# qk_norm_attention: one mean square over all heads together, as in models that norm before the split into heads.
def qk_norm_attention_all_heads(q, k, v, q_weight, k_weight, rope, eps):
    def norm(t, w):
        return t * torch.rsqrt(t.pow(2).mean((1, 3), keepdim=True) + eps) * w

    q, k = rope(norm(q, q_weight)), rope(norm(k, k_weight))
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    hidden = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool, device=q.device).triu(1)
    return scores.masked_fill(hidden, float("-inf")).softmax(-1) @ v


# sharded_rms_norm: the plain average of the ranks' mean squares, though widths differ.
def sharded_rms_norm_average_of_means(shards, weights, eps):
    ms = sum(s.pow(2).mean(-1, keepdim=True) for s in shards) / len(shards)
    return [s * torch.rsqrt(ms + eps) * w for s, w in zip(shards, weights)]


# What the checker is to say to each.
FRESH = (
    ("rms_norm", "eps_fixed", rms_norm_normalize),
    ("rms_norm", "sum_not_mean eps_outside", rms_norm_length),
    ("layer_norm", "unbiased_var eps_outside", layer_norm_std),
    ("layer_norm", "one_pass half_stats", layer_norm_one_pass),
    ("rms_norm_module", "not_registered", GainIsNoParameter),
    ("add_rms_norm", "residual_is_normed", add_rms_norm_normed_stream),
    ("pre_norm_block", "residual_from_normed", pre_norm_block_skip_from_norm),
    ("pre_norm_block", "parallel", pre_norm_block_parallel),
    ("post_norm_block", "norm_then_add", post_norm_block_norm_on_branch),
    ("rms_norm_backward", "dw_uses_x", rms_norm_backward_raw_x),
    ("layer_norm_backward", "no_proj_term", layer_norm_backward_variance_constant),
    ("gradient_check", "float32", gradient_check_own_dtype),
    ("welford", "same_delta", welford_old_mean),
    ("chunk_merge", "no_between empty_raises", chunk_merge_no_between),
    ("masked_batch_norm", "var_of_zeroed", masked_batch_norm_padding_in_variance),
    ("batch_norm_running_stats", "biased_running momentum_flipped", batch_norm_keras),
    ("fold_norm", "bias_uses_folded", fold_norm_shift_through_folded),
    ("weight_decay_groups", "bias_ends_and_norm_names", weight_decay_groups_by_name),
    ("qk_norm_attention", "all_heads", qk_norm_attention_all_heads),
    ("sharded_rms_norm", "mean_of_means", sharded_rms_norm_average_of_means),
)
