"""The calls of sglang, in its order.

sgl-project/sglang, main of 2026, python/sglang/srt: TorchMemorySaverAdapter (utils/
torch_memory_saver_adapter.py) in front of everything; ModelRunner.load_model and the memory pools
enter regions; the runner's backend captures with pool=, stream= and tag=; the scheduler's
release_memory_occupation and resume_memory_occupation (managers/scheduler_components) pause and
resume. The scheduler's process is started within configure_subprocess(), as Engine does.
"""

from __future__ import annotations

import multiprocessing
from functools import partial

WEIGHTS, KV_CACHE, CUDA_GRAPH = "weights", "kv_cache", "cuda_graph"


def scheduler(results: multiprocessing.Queue) -> None:  # type: ignore[type-arg]
    import torch
    from common import SIZE, SLACK, free, full, holds, initially_free

    import torch_memory_saver as package

    saver = package.torch_memory_saver
    assert saver is not None
    assert saver.enabled

    initial = initially_free()
    with saver.region(tag=WEIGHTS, enable_cpu_backup=True):
        weights = full(1)
    with saver.region(tag=KV_CACHE, enable_cpu_backup=False):
        keys, values = full(2), full(3)

    graphs, outputs, pool = {}, {}, torch.cuda.graph_pool_handle()
    capture = partial(saver.cuda_graph, tag=CUDA_GRAPH)
    for batch in (3, 2, 1):
        graph = torch.cuda.CUDAGraph()
        with capture(cuda_graph=graph, pool=pool, stream=None):
            between = weights + batch
            outputs[batch] = between + 1
            del between
        graphs[batch] = graph

    def replay() -> None:
        for batch, graph in graphs.items():
            graph.replay()
            assert holds(outputs[batch], weights[:1].tolist()[0] + batch + 1)

    replay()
    addresses = [t.data_ptr() for t in (weights, keys, values, *outputs.values())]
    for step in range(3):
        before = free()
        assert initial - before >= 3 * SIZE
        saver.pause(KV_CACHE)
        saver.pause(WEIGHTS)
        saver.pause(CUDA_GRAPH)
        torch.cuda.synchronize()
        assert initial - free() <= SLACK
        saver.resume(CUDA_GRAPH)
        saver.resume(WEIGHTS)
        assert holds(weights, 1 + step)
        weights.add_(1)  # update_weights_from_tensor
        saver.resume(KV_CACHE)
        assert abs(free() - before) <= SLACK
        keys.fill_(4)
        replay()
    saver.pause("nothing has this tag")
    saver.resume("nothing has this tag")
    assert [t.data_ptr() for t in (weights, keys, values, *outputs.values())] == addresses
    results.put("sglang done")


if __name__ == "__main__":
    from torch_memory_saver import configure_subprocess

    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    with configure_subprocess():
        process = context.Process(target=scheduler, args=(results,))
        process.start()
    process.join()
    assert process.exitcode == 0
    print(results.get(timeout=600))
