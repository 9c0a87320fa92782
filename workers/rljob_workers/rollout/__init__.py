"""The rollout role: generates with vLLM in process, runs episodes, has them graded, hands in scored groups."""
