"""Each page has the policy, and nothing in any page needs more than it allows."""

import re

import pytest
from django.contrib.auth.models import User
from django.urls import reverse

from chat.transports.csp import POLICY
from coordination.models import Run
from tests.test_admin import MODELS, SCRIPT, address, tell

pytestmark = pytest.mark.django_db

INLINE = [
    r"<script(?![^>]*\ssrc=)(?![^>]*type=\"application/json\")",
    r"<style",
    r"<[^>]*\sstyle=",
    r"<[^>]*\son\w+=",
    r"(src|href)=\"(https?:)?//(?!testserver)[^\"]*\.(js|css|svg|png)",
    r"javascript:",
]
PAGES = ["/", "/chat/new/", "/nowhere/", "/api/docs", "/signin/made-up/"]
PAGES += [
    "/admin/",
    "/admin/dashboard/",
    "/admin/logout/",
    "/admin/password_change/",
    "/admin/nowhere/",
]
OUTSIDE = ["/accounts/login/", "/admin/login/"]


@pytest.fixture
def staff(client):
    user = User.objects.create_superuser(SCRIPT)
    client.force_login(user)
    return user


def faults(answer):
    assert answer["Content-Security-Policy"] == POLICY
    page = answer.content.decode()
    return [found[0] for rule in INLINE if (found := re.search(rule, page, re.IGNORECASE))]


def test_no_page_has_what_the_policy_forbids(client, staff):
    tell(staff)
    for page in PAGES:
        assert faults(client.get(page, follow=True)) == [], page
    for model in MODELS:
        assert faults(client.get(address(model, "changelist"))) == [], model
        assert faults(client.get(address(model, "change", model.objects.first().pk))) == [], model
    client.logout()
    for page in OUTSIDE:
        assert faults(client.get(page)) == [], page


def test_users_and_groups_in_the_admin_obey_too(client, staff):
    for page in ("auth_user_changelist", "auth_user_add", "auth_group_add"):
        assert faults(client.get(reverse(f"admin:{page}"))) == [], page
    assert faults(client.get(reverse("admin:auth_user_change", args=[staff.pk]))) == []


def test_the_timeline_and_what_asks_before_an_action_obey_too(client, staff):
    chat = tell(staff)
    timeline = reverse("admin:coordination_session_timeline", args=[chat.pk])
    assert faults(client.get(timeline)) == []
    run = Run.objects.all()[0]
    asked = client.post(
        address(Run, "changelist"), {"action": "interrupt", "_selected_action": [run.pk]}
    )
    assert "Interrupt" in asked.content.decode()
    assert faults(asked) == []


def test_the_policy_knows_no_exception():
    assert "unsafe" not in POLICY
    assert "http" not in POLICY


def test_what_is_no_page_needs_no_policy(client):
    for path in ("/healthz", "/api/openapi.json", "/api/nowhere"):
        assert "Content-Security-Policy" not in client.get(path).headers
