"""What went wrong with a run, said from its record. No torch.

from headwater.diagnose import diagnose
"""

from headwater.diagnose.doctor import Diagnosis, diagnose, diagnosis_text
from headwater.diagnose.symptoms import Finding, Remedy

__all__ = ["Diagnosis", "Finding", "Remedy", "diagnose", "diagnosis_text"]
