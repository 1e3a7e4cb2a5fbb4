"""A ladder of kernels, each a rung above the one before. Run one with `python -m examples.<name>`.

    vector_add       registers, operators, predicates: one thread, one element
    tma_copy         a tensor map, an mbarrier, and the copy engine in both directions
    one_wgmma        one tile on the tensor cores: descriptors, and where a thread's results lie
    pipelined_gemm   a ring of stages between a producer warp and a consumer warpgroup
    persistent_gemm  two consumers, register budgets and a persistent grid, from the parts that the ops are made of

Beside the ladder: edit_triton changes one instruction of a kernel that Triton compiled.

On an H100 or H200 an example runs and is compared with torch. Elsewhere it shows its PTX and what ptxas makes of it.
"""
