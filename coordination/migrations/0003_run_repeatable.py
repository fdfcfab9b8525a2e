"""A task may be marked as harmless to do twice."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("coordination", "0002_question_approval")]

    operations = [
        migrations.AddField("run", "repeatable", models.BooleanField(default=False)),
    ]
