"""One-time sign-in links: they work once, in time, and say what to do when they do not."""

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from chat.models import SignInLink
from chat.signin import LINK_LIFE, one_time_link

pytestmark = pytest.mark.django_db


def signed_in(client):
    return "_auth_user_id" in client.session


def test_a_link_makes_the_superuser_and_signs_in(client):
    answer = client.get(one_time_link())
    assert answer.status_code == 302
    assert answer["Location"] == "/"
    assert signed_in(client)
    user = User.objects.get(username="admin")
    assert user.is_superuser
    assert not user.has_usable_password()


def test_a_link_works_once(client, django_assert_max_num_queries):
    link = one_time_link()
    client.get(link)
    client.logout()
    answer = client.get(link)
    assert answer.status_code == 410
    assert "manage.py signin_link" in answer.content.decode()
    assert not signed_in(client)


def test_an_expired_link_does_not_sign_in(client):
    link = one_time_link()
    SignInLink.objects.update(expires_at=timezone.now())
    assert client.get(link).status_code == 410
    assert not signed_in(client)


def test_a_made_up_link_does_not_sign_in(client):
    assert client.get("/signin/made-up/").status_code == 410


def test_looking_whether_a_link_exists_does_not_use_it_up(client):
    link = one_time_link()
    assert client.head(link).status_code == 405
    client.get(link)
    assert signed_in(client)


def test_only_the_hash_of_a_link_is_stored(client):
    token = one_time_link().split("/")[2]
    row = SignInLink.objects.get()
    assert token not in row.digest
    assert row.expires_at - row.created_at <= LINK_LIFE


def test_a_link_for_a_user_who_exists_changes_nothing_about_them(client):
    User.objects.create_user("ann", password="secret")
    client.get(one_time_link("ann"))
    assert signed_in(client)
    user = User.objects.get(username="ann")
    assert not user.is_superuser
    assert user.check_password("secret")


def test_a_link_of_a_deactivated_user_does_not_sign_in(client):
    link = one_time_link()
    User.objects.update(is_active=False)
    assert client.get(link).status_code == 410


def test_a_used_link_shows_someone_who_is_signed_in_the_way_on(client):
    link = one_time_link()
    client.get(link)
    assert 'href="/"' in client.get(link).content.decode()


def test_the_ordinary_login_works(client):
    User.objects.create_user("ann", password="secret")
    page = client.get("/accounts/login/?next=/chat/new/").content.decode()
    assert 'name="password"' in page
    wrong = client.post("/accounts/login/", {"username": "ann", "password": "wrong"})
    assert 'role="alert"' in wrong.content.decode()
    right = client.post(
        "/accounts/login/", {"username": "ann", "password": "secret", "next": "/chat/new/"}
    )
    assert right["Location"] == "/chat/new/"
    assert signed_in(client)
