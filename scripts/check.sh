#!/bin/sh
# Everything that can be said about the code without running it for real. All of it runs, then the
# verdict: a person wants to see every fault at once.
set -u
bin=.venv/bin
failed=

step() {
    name=$1
    shift
    printf '%s\n' "== $name"
    "$@" || failed="$failed
  $name"
}

# A production node, as far as Django's own checks can see.
export DJANGO_SECRET_KEY=${DJANGO_SECRET_KEY:-$($bin/python -c 'import secrets; print(secrets.token_urlsafe(50))')}
export DJANGO_DEBUG=0
export DJANGO_ALLOWED_HOSTS=chat.example.org
export DJANGO_CSRF_TRUSTED_ORIGINS=https://chat.example.org
export REDIS_URL=redis://127.0.0.1:6379/0
export DATABASE_URL=sqlite://:memory:

step "format" $bin/ruff format --check .
step "lint" $bin/ruff check .
step "types" $bin/mypy .
step "django" $bin/python manage.py check --deploy --fail-level WARNING
step "migrations" $bin/python manage.py makemigrations --check --dry-run
step "imports run down only" $bin/python -m pytest -q -p no:cacheprovider tests/test_imports.py

if [ -n "$failed" ]; then
    printf '\nfailed:%s\n' "$failed" >&2
    exit 1
fi
