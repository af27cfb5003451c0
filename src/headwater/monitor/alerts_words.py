"""Alerts in Chinese, and the words around them in both languages.

In: nothing. Out: `CHINESE`, by the alert's name; `WORDS`, by language.

    CHINESE["LossSpike"]        # "损失突然远高于原有水平"
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Language = Literal["en", "zh"]


@dataclass(frozen=True, slots=True)
class Words:
    """What stands around alerts in a message. `{n}` is a number, `{when}` a time of day."""

    one_alert: str
    alerts: str
    resolved_count: str
    between: str
    resolved: str
    since: str
    until: str
    more: str
    test: str


WORDS: dict[Language, Words] = {
    "en": Words(
        one_alert="1 alert", alerts="{n} alerts", resolved_count="{n} resolved", between=", ", resolved="resolved ",
        since=" (since {when} UTC)", until=" (until {when} UTC)", more="... and {n} more",
        test="Alerts of your runs come here.",
    ),
    "zh": Words(
        one_alert="1 条告警", alerts="{n} 条告警", resolved_count="{n} 条已恢复", between="，", resolved="已恢复 ",
        since="（自 {when} UTC）", until="（至 {when} UTC）", more="……另有 {n} 条",
        test="各次训练的告警会发到这里。",
    ),
}  # fmt: skip

CHINESE: dict[str, str] = {
    "NonFinite": "损失或梯度中出现 NaN 或无穷大",
    "LossSpike": "损失突然远高于原有水平",
    "LossAboveAverage": "损失远高于其移动平均",
    "GradientExplosion": "梯度范数爆炸",
    "GradientVanishing": "梯度范数持续接近零",
    "NoConvergence": "损失没有低于起始水平",
    "SlowDivergence": "损失长时间上升",
    "Plateau": "损失不再下降",
    "Oscillation": "损失的振荡越来越大",
    "DeadHeads": "有注意力头不起作用",
    "TensorGradients": "个别参数的梯度爆炸或消失",
    "NoUpdates": "大多数参数不再变化",
    "SlowData": "训练步在等待数据",
    "SlowSteps": "训练步远慢于平时",
    "SlowRank": "某个 rank 拖慢了其他 rank",
    "MemoryCreep": "内存逐步增长",
    "MemoryNearLimit": "内存即将用尽",
    "OldCheckpoint": "最新的检查点过旧",
    "ChangedWeights": "权重在更新之后、下一步之前发生了变化",
    "Hang": "训练步迟迟不结束",
    "RunDiskNearlyFull": "训练所在磁盘即将写满",
    "RunDiskFull": "训练所在磁盘已写满",
    "Overflow": "连续多步 fp16 溢出",
    "OutOfMemory": "设备内存不足，无法完成训练步",
    "TrainingDown": "距离结束还有一分钟以上的训练不再应答",
    "NoProgress": "十分钟没有记录到新的训练步",
    "Recovery": "训练已自行恢复；详见运行账本",
    "CheckpointStale": "最新的检查点已超过一小时",
    "SinkFails": "有输出端无法写入，指标正在丢失",
    "ThroughputDrop": "吞吐量比过去一小时的中位数低五分之一以上",
    "ExporterDown": "机器的指标导出器不再应答",
    "DiskNearlyFull": "文件系统剩余空间不足 5 %",
    "MachineMemoryNearlyFull": "机器可用内存不足 5 %",
    "GpuError": "驱动报告了 XID 错误",
    "GpuMemoryErrors": "GPU 显存出现不可纠正的错误",
    "GpuHot": "GPU 温度超过 88 摄氏度",
}
