// Runs checks one after the other, each within a limit of seconds.
// Prints "ok|FAIL <tab> check <tab> reason" a line; ends the program with 1 when a check failed.

import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

final class Runner {
    private Runner() {
    }

    static void run(Map<String, Callable<Void>> checks, List<String> wanted, long limitS) throws InterruptedException {
        boolean failed = false;
        for (Map.Entry<String, Callable<Void>> check : checks.entrySet()) {
            if (wanted.isEmpty() || wanted.contains(check.getKey())) {
                failed |= !passes(check.getKey(), check.getValue(), limitS);
            }
        }
        System.exit(failed ? 1 : 0);
    }

    private static boolean passes(String name, Callable<Void> check, long limitS) throws InterruptedException {
        ExecutorService one = Executors.newSingleThreadExecutor();
        try {
            one.submit(check).get(limitS, TimeUnit.SECONDS);
            System.out.println("ok\t" + name + "\t");
            return true;
        } catch (TimeoutException late) {
            System.out.println("FAIL\t" + name + "\tnot done within " + limitS + " s");
        } catch (ExecutionException failure) {
            System.out.println("FAIL\t" + name + "\t" + String.valueOf(failure.getCause()).replaceAll("\\s+", " "));
            if (Boolean.getBoolean("traces")) {
                failure.getCause().printStackTrace();
            }
        } finally {
            one.shutdownNow();
        }
        return false;
    }
}
