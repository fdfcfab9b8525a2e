"""Lists begin with the newest rows, and a session's pages with its own: an index for each."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("coordination", "0008_worklog_where_from"),
    ]

    operations = [
        migrations.AddIndex(
            model_name="inboxmessage",
            index=models.Index(fields=["created_at"], name="inbox_newest"),
        ),
        migrations.AddIndex(
            model_name="lease",
            index=models.Index(fields=["acquired_at"], name="lease_newest"),
        ),
        migrations.AddIndex(
            model_name="question",
            index=models.Index(fields=["opened_at"], name="question_newest"),
        ),
        migrations.AddIndex(
            model_name="run",
            index=models.Index(fields=["session", "position"], name="run_order"),
        ),
        migrations.AddIndex(
            model_name="run",
            index=models.Index(fields=["queued_at"], name="run_newest"),
        ),
        migrations.AddIndex(
            model_name="session",
            index=models.Index(fields=["created_at"], name="session_newest"),
        ),
        migrations.AddIndex(
            model_name="wait",
            index=models.Index(fields=["opened_at"], name="wait_newest"),
        ),
        migrations.AddIndex(
            model_name="worklogentry",
            index=models.Index(fields=["session", "run_id"], name="worklog_run"),
        ),
    ]
