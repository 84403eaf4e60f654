"""What the machine has and what a model will need, so that what cannot work is refused with numbers before it starts.

    machine.inspect() -> Machine -> plan.limit_bytes -> plan.check(plan.plan(...), limit)

A leaf: it knows nothing of the rest of tinymlx but its errors. `machine` and `measured` say what is here, `cgroup`
what of it a container may use, `chips` what makers promise, `plan` predicts memory, `sizes` the memory and pace of the
official Qwen3 models.
"""
