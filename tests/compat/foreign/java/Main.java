// Runs the checks of the Java client against one bootstrap address: java Main HOST:PORT PREFIX [CHECK ...]
// Prints "ok|FAIL <tab> check <tab> reason" a line; exits with 1 when a check failed.

import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

public final class Main {
    static final long CHECK_S = 60;

    public static void main(String[] args) throws Exception {
        Map<String, Callable<Void>> checks = new LinkedHashMap<>();
        new PlainChecks(args[0], args[1]).addTo(checks);
        new TransactionChecks(args[0], args[1]).addTo(checks);
        new GroupChecks(args[0], args[1]).addTo(checks);
        new AdminChecks(args[0], args[1]).addTo(checks);
        List<String> wanted = List.of(args).subList(2, args.length);
        boolean failed = false;
        for (Map.Entry<String, Callable<Void>> check : checks.entrySet()) {
            if (wanted.isEmpty() || wanted.contains(check.getKey())) {
                failed |= !passes(check.getKey(), check.getValue());
            }
        }
        System.exit(failed ? 1 : 0);
    }

    private static boolean passes(String name, Callable<Void> check) throws InterruptedException {
        ExecutorService one = Executors.newSingleThreadExecutor();
        try {
            one.submit(check).get(CHECK_S, TimeUnit.SECONDS);
            System.out.println("ok\t" + name + "\t");
            return true;
        } catch (TimeoutException late) {
            System.out.println("FAIL\t" + name + "\tnot done within " + CHECK_S + " s");
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
