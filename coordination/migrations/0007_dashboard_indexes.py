"""What the dashboard counts is found without reading what has ended long ago."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("coordination", "0006_worker_node")]

    operations = [
        migrations.AddIndex(
            "inboxmessage", models.Index(fields=["state", "created_at"], name="inbox_state")
        ),
        migrations.AddIndex(
            "run", models.Index(fields=["ended_at", "status", "reason"], name="run_ended")
        ),
        migrations.AddIndex(
            "worklogentry", models.Index(fields=["level", "at", "kind"], name="worklog_alarms")
        ),
    ]
