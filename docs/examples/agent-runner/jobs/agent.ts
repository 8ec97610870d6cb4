// One task of an agent on one machine. The machine is the job's target, so it never has two agents at once.
import { defineJob, z } from 'leasehold';

export default defineJob({
  type: 'agent.run',
  payload: z.object({
    task: z.string(),
    steps: z.int().min(1).max(100).default(5),
    secondsPerStep: z.number().min(0).max(60).default(1),
  }),
  // An attempt that was interrupted continues behind its last completed step.
  checkpoint: z.object({ step: z.int() }),
  retry: { attempts: 3 },
  timeoutSeconds: 3600,
  async run({ payload, job, lastCheckpoint, checkpoint, lease, progress, log, addUsage, sleep }) {
    const { steps } = payload;
    for (let step = (lastCheckpoint?.step ?? 0) + 1; step <= steps; step++) {
      await lease.assert(); // right before each action: does the machine still belong to this attempt?
      log(`${payload.task}: step ${step}`, { machine: job.targetId, fence: lease.fence });
      await sleep(payload.secondsPerStep * 1000); // in place of the model and the machine; stops on pause and cancel
      await addUsage({ tokens: 400 });
      await checkpoint({ step });
      progress((step * 100) / steps, `step ${step} of ${steps}`);
    }
    return { machine: job.targetId, steps };
  },
});
