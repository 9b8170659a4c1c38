"""The scheduler actor: records, planning, and the guard around the policy that fills ``scheduler.use``."""
