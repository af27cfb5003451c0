// A report carries its data in the page; the dashboard's page has none and asks for it.

const carried = document.getElementById("data");
if (carried) startReport(JSON.parse(carried.textContent));
else startDashboard();
