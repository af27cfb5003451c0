"""What the two completion endpoints do: check, queue, and turn the worker's events into an answer.

service = Service(engine, config, model_name="tiny", template=ChatTemplate())
service.worker.start()
response = await service.completions(request_body, http_request)
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from headwater.core.errors import UserError
from headwater.engine import Engine, SamplingParams
from headwater.serve.asgi import EventStream, JsonResponse, watch_disconnect
from headwater.serve.config import ServeConfig
from headwater.serve.errors import ApiError, bad_request, internal, model_not_found, timed_out
from headwater.serve.guard import Guard
from headwater.serve.jobs import Event, Finished, Job
from headwater.serve.metrics import ServerMetrics
from headwater.serve.prompts import (
    EncodedPrompt,
    check_ids,
    check_length,
    encode_chat,
    encode_completion,
)
from headwater.serve.protocol import ChatRequest, CompletionRequest, SamplingFields
from headwater.serve.replies import ChatReply, CompletionReply, Reply
from headwater.serve.template import ChatTemplate
from headwater.serve.token_names import TokenNames
from headwater.serve.worker import Worker

CLIENT_GONE = 499
"""Status nobody reads, of an answer whose client left (nginx's number)."""


class Service:
    """One model behind the API."""

    def __init__(self, engine: Engine, config: ServeConfig, *, model_name: str, template: ChatTemplate) -> None:
        self.engine, self.config, self.model_name, self.template = engine, config, model_name, template
        self.metrics = ServerMetrics(model_name)
        self.names = TokenNames(engine.tokenizer)
        self.worker = Worker(engine, self.metrics, max_concurrent=config.max_concurrent, max_waiting=config.max_waiting)
        self.created = int(time.time())
        self.guard = Guard.of(config)

    async def completions(self, body: CompletionRequest, request: Request) -> Response:
        """POST /v1/completions."""
        self._check_model(body.model)
        prompts = await asyncio.to_thread(encode_completion, body, self.engine)
        await self._guarded(prompts, body.stream, "prompt")
        asked = body.max_tokens if "max_tokens" in body.model_fields_set else None
        limit = self._limit(prompts, asked, body.max_tokens, "prompt", "max_tokens")
        params = self._params(body, limit, body.logprobs, ()) if body.max_tokens else None
        job = Job(
            [prompt.ids for prompt in prompts],
            params,
            score_top=body.logprobs if body.echo else None,
        )
        self._check_rows(job)
        reply = CompletionReply(self.names, self.model_name, body, prompts)
        return await self._answer(job, reply, body, request)

    async def chat(self, body: ChatRequest, request: Request) -> Response:
        """POST /v1/chat/completions."""
        self._check_model(body.model)
        prompt, stops = await asyncio.to_thread(encode_chat, body, self.engine, self.template)
        await self._guarded([prompt], body.stream, "messages")
        limit = self._limit([prompt], body.longest, self.config.max_tokens, "messages", "max_tokens")
        logprobs = (body.top_logprobs or 0) if body.logprobs else None
        job = Job([prompt.ids], self._params(body, limit, logprobs, stops))
        self._check_rows(job)
        reply = ChatReply(self.names, self.model_name, body, len(prompt.ids))
        return await self._answer(job, reply, body, request)

    async def _guarded(self, prompts: Sequence[EncodedPrompt], stream: bool, param: str) -> None:
        """Raises ApiError for prompts that the filter, if there is one, does not let through."""
        if self.guard is not None:
            self.guard.check_stream(stream)
            texts = [self.engine.tokenizer.decode(list(prompt.ids)) for prompt in prompts]
            await asyncio.to_thread(self.guard.check_prompts, texts, param)

    def _check_model(self, name: str) -> None:
        if name != self.model_name:
            raise model_not_found(name, self.model_name)

    def _check_rows(self, job: Job) -> None:
        if job.rows > self.config.max_concurrent:
            raise bad_request(
                f"The request asks for {job.rows} completions; this server makes at most "
                f"{self.config.max_concurrent} at a time.",
                param="n",
            )

    def _limit(self, prompts: Sequence[EncodedPrompt], asked: int | None, default: int, param: str, name: str) -> int:
        """Most tokens to generate. What was asked for must fit; the default shrinks to what does."""
        if asked is not None and asked > self.config.max_tokens:
            raise bad_request(
                f"{name} is {asked:,}; this server generates at most {self.config.max_tokens:,}.", param=name
            )
        context = self.engine.context
        check_length(prompts, asked, context, self.config.max_prompt_tokens, param)
        if asked is not None:
            return asked
        return min(default, self.config.max_tokens, context - max(len(prompt.ids) for prompt in prompts))

    def _params(
        self, body: SamplingFields, max_tokens: int, logprobs: int | None, stops: tuple[str, ...]
    ) -> SamplingParams:
        check_ids(list(body.logit_bias), self.engine, "logit_bias")
        check_ids(body.stop_token_ids, self.engine, "stop_token_ids")
        try:
            return SamplingParams(
                max_tokens=max_tokens,
                temperature=body.temperature,
                top_k=max(0, body.top_k),
                top_p=body.top_p,
                min_p=body.min_p,
                repetition_penalty=body.repetition_penalty,
                presence_penalty=body.presence_penalty,
                frequency_penalty=body.frequency_penalty,
                logit_bias=body.logit_bias,
                seed=body.seed,
                n=body.n,
                stop=(*body.stop, *stops),
                stop_token_ids=tuple(body.stop_token_ids),
                ignore_eos=body.ignore_eos,
                logprobs=logprobs,
            )
        except UserError as error:
            raise bad_request(error.what, param=error.where) from error

    async def _answer(self, job: Job, reply: Reply, body: SamplingFields, request: Request) -> Response:
        self.worker.submit(job)
        if body.stream:
            return EventStream(self._stream(job, reply), job.cancel)
        watcher = asyncio.create_task(watch_disconnect(request.receive, job.cancel))
        try:
            async for event in self._events(job):
                reply.take(event)
        except _ClientGoneError:
            return Response(status_code=CLIENT_GONE)
        finally:
            watcher.cancel()
            job.cancel()
        self._succeeded(job, reply)
        whole = reply.whole()
        if self.guard is not None:
            whole = await asyncio.to_thread(self.guard.check_reply, whole)
        return JsonResponse(whole)

    async def _stream(self, job: Job, reply: Reply) -> AsyncGenerator[dict[str, Any], None]:
        try:
            for chunk in reply.opening():
                yield chunk
            async for event in self._events(job):
                for chunk in reply.chunks(event):
                    yield chunk
            for chunk in reply.closing():
                yield chunk
            self._succeeded(job, reply)
        except _ClientGoneError:
            return
        except ApiError as error:
            yield error.body()

    async def _events(self, job: Job) -> AsyncGenerator[Event, None]:
        """Events until the job is finished. Raises ApiError if it failed or took too long."""
        deadline = job.arrived + self.config.timeout
        while True:
            try:
                async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                    event = await job.next_event()
            except TimeoutError:
                job.cancel()
                raise timed_out(self.config.timeout) from None
            if isinstance(event, Finished):
                if event.cancelled:
                    self.metrics.cancelled()
                    raise _ClientGoneError
                if event.error is not None:
                    raise event.error if isinstance(event.error, ApiError) else internal()
                job.cancelled = True  # nothing is left to cancel
                return
            yield event

    def _succeeded(self, job: Job, reply: Reply) -> None:
        self.metrics.latency.observe(time.monotonic() - job.arrived)
        self.metrics.request_generation_tokens.observe(job.generated_tokens)
        self.metrics.succeeded(reply.finish_reason)


class _ClientGoneError(Exception):
    pass
