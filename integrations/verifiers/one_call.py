"""A harness for the library verifiers in the same process: a call for each turn, without the process for each run that
the library's own harnesses start. For task sets without tools: `"harness": {"id": "one_call"}`.
"""

import httpx
import verifiers.v1 as vf

__all__ = ["OneCallHarness"]


class OneCallHarness(vf.Harness[vf.HarnessConfig]):
    """Sends the task's messages as they are and returns the reply."""

    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_RESUME = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: vf.ModelContext,
        trace: vf.Trace,  # noqa: ARG002
        runtime: vf.Runtime,  # noqa: ARG002
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],  # noqa: ARG002
        data: vf.TaskData,
    ) -> vf.ProgramResult:
        system, prompt = self.resolve_prompt(data)
        messages = [{"role": "system", "content": system}] if system is not None else []
        if isinstance(prompt, str):
            messages.append({"role": "user", "content": prompt})
        else:
            messages += [message.model_dump(exclude_none=True) for message in prompt or ()]
        async with httpx.AsyncClient(trust_env=False, timeout=None) as http:
            answer = await http.post(
                f"{endpoint}/chat/completions",
                json={"model": ctx.model, "messages": messages},
                headers={"Authorization": f"Bearer {secret}"},
            )
        return vf.ProgramResult(
            exit_code=int(answer.is_error), stdout="", stderr=answer.text if answer.is_error else ""
        )
