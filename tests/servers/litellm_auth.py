"""Authentication of callers for LiteLLM, in place of its database of keys."""

from fastapi import HTTPException, Request
from litellm.proxy._types import UserAPIKeyAuth


async def user_api_key_auth(request: Request, api_key: str) -> UserAPIKeyAuth:
    if not api_key.startswith("sk-caller-"):
        raise HTTPException(401, "unknown key")
    return UserAPIKeyAuth(api_key=api_key, user_id=api_key)
